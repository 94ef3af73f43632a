"""
Evaluation counts every sample once, on any number of ranks.
"""

import pytest
import torch
import torch.distributed as dist
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.samplers import (
    BalancedBatchSampler,
    ExactSampler,
    ShardSampler,
    exact_accuracy,
    gather_throughputs,
    sum_counts,
)


def _accuracies(rank, world_size, num_samples):
    is_right = [index % 3 == 0 for index in range(num_samples)]
    exact = list(ExactSampler(range(num_samples)))
    padded = list(ShardSampler(range(num_samples), shuffle=False))
    return (
        exact,
        exact_accuracy(sum(is_right[i] for i in exact), len(exact)),
        exact_accuracy(torch.tensor(sum(is_right[i] for i in padded)), len(padded)),
    )


@pytest.mark.parametrize(
    ("world_size", "num_samples"), [(1, 7), (2, 7), (3, 7), (4, 7), (4, 3), (4, 8)]
)
def test_exact_accuracy_counts_every_sample_once(world_size, num_samples):
    """
    Padding biases the accuracy if shards are unequal. Exact shards do not, also if a rank has no
    samples.
    """
    results = run_world(world_size, _accuracies, num_samples)
    seen = sorted(index for exact, _, _ in results for index in exact)
    assert seen == list(range(num_samples))
    right = sum(index % 3 == 0 for index in range(num_samples)) / num_samples
    assert [exact for _, exact, _ in results] == [right] * world_size
    if num_samples % world_size:
        assert all(padded != right for _, _, padded in results)


def test_exact_sampler_has_a_length():
    """
    The sampler has a length, which a DataLoader needs.
    """
    samplers = [ExactSampler(range(7), rank=rank, world_size=3) for rank in range(3)]
    assert [len(sampler) for sampler in samplers] == [3, 2, 2]


def _large_counts(rank, world_size):
    large = 2**24 if rank == 0 else 1
    as_float = torch.tensor([float(large)])
    dist.all_reduce(as_float)
    flaws = []
    for wrong in (0.5, torch.tensor(0.5), torch.tensor([1, 2]), "3"):
        with pytest.raises(
            BadInput, match=rf"^Not a count: .*rank {rank} of {world_size}"
        ) as error:
            sum_counts(1, wrong)
        flaws.append(str(error.value))
    with pytest.raises(BadInput, match=r"^Nothing to evaluate"):
        exact_accuracy(0, 0)
    return sum_counts(large, torch.tensor(rank)), int(as_float.item()), flaws


def test_sum_counts_is_exact_where_float32_is_not():
    """
    Counts are exact where float32 has no 2**24 + 1. A value that is no count is refused before any
    message.
    """
    for counts, as_float, flaws in run_world(2, _large_counts):
        assert counts == [2**24 + 1, 1]
        assert as_float == 2**24
        assert "float32" in flaws[1]


def test_a_group_of_one_counts_and_shares_as_one_process(lone_group):
    """
    A script that was written for many ranks also runs on one.
    """
    _large_counts(0, 1)
    sampler = ExactSampler(range(5))
    assert list(sampler) == [0, 1, 2, 3, 4]
    assert exact_accuracy(4, len(sampler)) == 0.8
    assert BalancedBatchSampler(range(5), 2, gather_throughputs(7.5)).shares == [5]
