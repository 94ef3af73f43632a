"""
The median over all ranks, gathered or by counting, is that of one process.
"""

import math

import pytest
import torch
from metric_shards import part_of
from worlds import WORLD_SIZES, run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.metrics import gathered_median, median_by_counting, whole_median
from ddp_lessons.trace import collectives, trace

CASES = {
    "odd": [3.0, -1.0, 7.5, 0.0, 2.0],
    "even": [4.0, 1.0, 2.0, 3.0],
    "negative": [-3.5, -1e300, -2.0, -1e-310, -7.0, -0.0],
    "equal": [2.0] * 7,
    "one": [math.pi],
    "infinite": [math.inf, -math.inf, math.inf],
    "tiny": [5e-324, 0.0, -5e-324, 1e-323],
    "nan": [1.0, math.nan, 2.0],
}


def _medians(rank, world_size):
    found = {}
    for name, whole in CASES.items():
        own = part_of(torch.tensor(whole, dtype=torch.float64), rank, world_size)
        found[name] = gathered_median(own), median_by_counting(own)
    generator = torch.Generator().manual_seed(3)
    scores = torch.randint(0, 1024, (201,), generator=generator)
    with trace() as events:
        middle = whole_median(part_of(scores, rank, world_size), 0, 1023)
    return found, (middle, scores.median().item(), collectives(events))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_median_is_that_of_all_values(world_size):
    """
    The median is exact, so there is no tolerance. Cases are two values in the middle, negative
    values, zeros of both signs, and values that are not finite.
    """
    for found, (middle, right, calls) in run_world(world_size, _medians):
        for name, whole in CASES.items():
            expected = torch.tensor(whole, dtype=torch.float64).median().item()
            for got in found[name]:
                assert got == expected or (math.isnan(got) and math.isnan(expected)), name
        assert middle == right
        assert calls == ["all_reduce"] * 11, "the number of values, then ten halvings of 1,024"


def test_median_of_nothing(lone_group):
    """
    Without any value all ranks raise, because all know the number of values.
    """
    for median in (gathered_median, median_by_counting, lambda v: whole_median(v, 0, 9)):
        with pytest.raises(BadInput, match="No samples"):
            median(torch.empty(0))
    assert whole_median(torch.tensor([5]), 5, 5) == 5
    with trace() as events:
        assert median_by_counting(torch.tensor([1.5])) == 1.5
    assert len(collectives(events)) == 65, "as it says"
