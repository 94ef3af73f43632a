"""
The partition of whole parameters over ranks: as even as possible, and the same on all ranks.
"""

import random

import pytest

from ddp_lessons.errors import BadInput
from ddp_lessons.sharded_optimizer import partition


def _loads(sizes, owners, world_size):
    return [sum(n for n, o in zip(sizes, owners, strict=True) if o == r) for r in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_no_rank_has_more_than_its_share_and_one_parameter(world_size):
    """
    No rank has more than its share and one parameter, and moving any parameter to another rank
    would not reduce the larger load.
    """
    rng = random.Random(world_size)
    for _ in range(50):
        sizes = [rng.choice([0, 1, 3, 10, 64, 640, 4096]) for _ in range(rng.randint(1, 12))]
        owners = partition(sizes, world_size)
        loads = _loads(sizes, owners, world_size)
        assert max(loads) <= sum(sizes) / world_size + max(sizes)
        for size, owner in zip(sizes, owners, strict=True):
            assert all(load + size >= loads[owner] for load in loads)


def test_what_ranks_have_already_counts():
    """
    Loads that ranks already have count: a group that is added later goes to the ranks with least.
    """
    assert partition([5, 5, 5], 3, loads=[10, 0, 3]) == [1, 2, 1]


def test_nobody_to_own():
    """
    A partition over zero ranks is refused.
    """
    with pytest.raises(BadInput, match=r"1 rank or more expected \(got 0\)"):
        partition([1], 0)
