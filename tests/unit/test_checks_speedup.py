"""
The recorded times of task 11.4: each mistake computes another number from them.
"""

from itertools import combinations
from types import SimpleNamespace

import pytest

from ddp_lessons.checks.speed.report_speedup import Times, noted_times_s

SAMPLES, BEFORE, WARM_UP = (8, 12, 4, 10), 8, 1
STEPS = {"warm-up", "means", "best", "own-times", "alone", "seconds", "inverse", "percent"}


@pytest.fixture
def times():
    """
    Return the values that the check computes from the recorded times.
    """
    before = [(*_given(rank), SAMPLES[rank], WARM_UP) for rank in range(4)]
    seen = [SimpleNamespace(calls=[SimpleNamespace(before=told)]) for told in before]
    return Times(SimpleNamespace(seen=seen))


def _given(rank):
    before_s, own_s = noted_times_s(rank)
    return before_s, BEFORE, own_s


@pytest.mark.parametrize("rank", range(4))
def test_each_mistake_makes_another_speedup_of_the_noted_times(times, rank):
    """
    Each mistake gives another speed-up with the recorded times. Measured times do not ensure that:
    on a busy machine one rank may be last in every step.
    """
    found = {}
    for name, value in times.of_gain(rank):
        if name in STEPS:
            found.setdefault(name, []).append(value)
            assert value != pytest.approx(times.right["speedup"], rel=1e-3), name
    assert found.keys() == STEPS
    for one, other in combinations(found, 2):
        for value in found[one]:
            near = [each for each in found[other] if each == pytest.approx(value, rel=1e-3)]
            assert not near, (one, other)


def test_each_mistake_makes_another_spread_of_the_noted_times(times):
    """
    Each mistake gives another spread on some rank. A warm-up step may be the slowest of all, but it
    is never the fastest.
    """
    wrong = [value for rank in range(4) for _, value in times.of_spread(rank)]
    right = times.right["fastest_s"], times.right["slowest_s"]
    assert right == (0.012, 0.019)
    assert sum(value not in right for value in wrong) >= len(wrong) / 2
