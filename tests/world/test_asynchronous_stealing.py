"""
Work queues on real ranks: each item is taken once, in whatever order.
"""

import itertools

import pytest
import torch.distributed as dist
from worlds import WORLD_SIZES, run_world

from ddp_lessons.asynchronous import Queues, new_counters
from ddp_lessons.errors import BadInput


def _sizes(world_size):
    return [(7, 0, 12, 3)[rank] for rank in range(world_size)]


def _take_all(rank, world_size):
    taken = []
    for _ in range(2):  # counters are new each time
        queues = Queues(new_counters(), _sizes(world_size), rank)
        own = list(iter(queues.take, None))
        assert queues.take() is None
        taken.append((own, queues.num_stolen))
    return taken


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_each_item_is_taken_once_and_own_ones_first(world_size):
    """
    An item that two ranks take would count twice in the gradient, and an item that no rank takes
    would be lost.
    """
    results = run_world(world_size, _take_all)
    for number in range(2):
        items = sorted(item for one in results for item in one[number][0])
        assert items == [
            (owner, item) for owner, size in enumerate(_sizes(world_size)) for item in range(size)
        ]
        for rank, one in enumerate(results):
            taken, num_stolen = one[number]
            owners = [owner for owner, _ in taken]
            assert num_stolen == sum(owner != rank for owner in owners)
            assert rank not in itertools.dropwhile(lambda owner, rank=rank: owner == rank, owners)


def _one_takes_all(rank, world_size):
    queues = Queues(new_counters(), [3, 1, 4], rank)
    taken = list(iter(queues.take, None)) if rank == 1 else []
    dist.barrier()
    return taken, [queues.take() for _ in range(2)]


def test_thief_goes_to_the_longest_queue():
    """
    A rank without work steals from the longest queue, because two ranks are least likely to meet
    there at the last item.
    """
    results = run_world(3, _one_takes_all)
    owners = [owner for owner, _ in results[1][0]]
    # where two queues are equally long, that of the lower rank comes first
    assert owners == [1, 2, 0, 2, 0, 2, 0, 2]
    assert [left for _, left in results] == [[None, None]] * 3


@pytest.mark.parametrize(("sizes", "rank"), [([1, -1], 0), ([1, 1], 2), ([], 0)])
def test_queues_refuse_what_makes_no_sense(sizes, rank):
    """
    Bad sizes and ranks are refused. A rank without a queue could steal, but its items would belong
    to no rank.
    """
    with pytest.raises(BadInput, match=r"Bad queues: expected a size of 0 or more for each rank"):
        Queues(None, sizes, rank)
