"""
The fit of latency and bandwidth to measurements, and the confidence of its intervals.
"""

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddp_lessons.costs import (
    Link,
    collective_s,
    critical_path,
    fit,
)
from ddp_lessons.errors import BadInput


@settings(max_examples=60)
@given(
    latency_s=st.floats(1e-7, 1e-3),
    bandwidth=st.floats(1e7, 1e11),
    seed=st.integers(0, 2**32),
    noise=st.floats(1e-4, 0.03),
    world_size=st.integers(2, 8),
)
def test_fit_holds_the_truth_in_its_interval(latency_s, bandwidth, seed, noise, world_size):
    """
    The true latency and bandwidth lie in the intervals of a fit to made-up measurements of a ring.

    At a confidence of 1 - 1e-9, a miss in about 300 intervals is rarer than one run in a million.
    """
    rng = random.Random(seed)
    truth = Link(latency_s, bandwidth)
    rounds, share = critical_path("all_reduce", "ring", world_size)
    samples = [
        (
            num_bytes,
            collective_s("all_reduce", "ring", world_size, num_bytes, truth)
            * (1 + noise * max(-4.0, min(4.0, rng.gauss(0, 1)))),
        )
        for num_bytes in [2**k for k in range(3, 28)] * 2
    ]
    found = fit(samples, rounds, share, confidence=1 - 1e-9)
    assert latency_s in found.latency_s
    assert bandwidth in found.bandwidth_bytes_per_s
    for num_bytes in (100, 10**5, 10**8):
        expected_s = collective_s("all_reduce", "ring", world_size, num_bytes, truth)
        assert expected_s in found.predict(num_bytes)
    assert found.num_samples == 50
    # 50 samples determine a standard deviation to a tenth of itself. The limits are five tenths
    # away.
    assert 0.5 * noise < found.error_share < 1.5 * noise


def test_fit_intervals_hold_the_truth_as_often_as_they_say():
    """
    A 95 % interval holds the truth in 95 % of cases, for few samples too: a narrower one gives
    false confidence, and a wider one no help.

    In 1,000 tries the number of hits has a standard deviation of at most 6.9. The test allows four
    of them.
    """
    rng = random.Random(5)
    hits = {"latency": 0, "bandwidth": 0, "next": 0}
    for _ in range(1000):
        samples = [(4**k, (1e-5 + 4**k / 1e9) * (1 + 0.05 * rng.gauss(0, 1))) for k in range(3, 13)]
        found = fit(samples)
        hits["latency"] += 1e-5 in found.latency_s
        hits["bandwidth"] += 1e9 in found.bandwidth_bytes_per_s
        again = (1e-5 + 50_000 / 1e9) * (1 + 0.05 * rng.gauss(0, 1))
        hits["next"] += again in found.predict(50_000)
    for name, count in hits.items():
        assert abs(count - 950) <= 4 * 6.9, name


def test_fit_of_exact_times_is_exact():
    """
    A fit of exact times is exact within the rounding of some hundred operations, 2**-53 each.
    """
    found = fit([(size, 2e-5 + size / 5e9) for size in (8, 1024, 2**20, 2**26)])
    assert found.latency_s.value == pytest.approx(2e-5, rel=1e-12)
    assert found.bandwidth_bytes_per_s.value == pytest.approx(5e9, rel=1e-12)
    assert found.link == Link(found.latency_s.value, found.bandwidth_bytes_per_s.value)
    other = found.predict(1000, num_rounds=6, byte_share=1.5)
    assert other.value == pytest.approx(6 * 2e-5 + 1500 / 5e9, rel=1e-12)


def test_fit_sees_the_latency_where_plain_least_squares_does_not():
    """
    The fit finds the latency where plain least squares does not: weighted by seconds, the errors of
    large times exceed the latency.
    """
    rng = random.Random(1)
    sizes = [2**k for k in range(3, 29)]
    samples = [(n, (1e-5 + n / 1e9) * (1 + 0.05 * rng.gauss(0, 1))) for n in sizes]
    found = fit(samples)
    assert abs(found.latency_s.value - 1e-5) < 0.1 * 1e-5
    mean_n = sum(n for n, _ in samples) / len(samples)
    mean_s = sum(s for _, s in samples) / len(samples)
    slope = sum((n - mean_n) * (s - mean_s) for n, s in samples) / sum(
        (n - mean_n) ** 2 for n, _ in samples
    )
    assert abs(mean_s - slope * mean_n - 1e-5) > 10 * 1e-5


def test_fit_is_not_ruled_by_one_time_that_was_interrupted():
    """
    One interrupted measurement does not decide the fit. The logarithm of its error moves the fit by
    less than half, and the intervals, which it widens, still hold the truth.
    """
    truth = [(4**k, 1e-5 + 4**k / 1e9) for k in range(3, 13)]
    for broken in range(10):
        samples = [(n, s * 30 if k == broken else s) for k, (n, s) in enumerate(truth)]
        found = fit(samples)
        assert 30**-0.5 < found.latency_s.value / 1e-5 < 30**0.5
        assert 30**-0.5 < found.bandwidth_bytes_per_s.value / 1e9 < 30**0.5
        assert 1e-5 in found.latency_s
        assert 1e9 in found.bandwidth_bytes_per_s


def test_fit_finds_its_way_from_far_off():
    """
    The fit converges although the first and the last time, where its search starts, are wrong by a
    factor of 100.
    """
    truth = [(4**k, 1e-5 + 4**k / 1e9) for k in range(1, 15)]
    samples = [(truth[0][0], truth[0][1] * 100), *truth[1:-1], (truth[-1][0], truth[-1][1] / 100)]
    found = fit(samples)
    assert 1e-5 in found.latency_s
    assert 1e9 in found.bandwidth_bytes_per_s


@settings(max_examples=60)
@given(
    samples=st.lists(
        st.tuples(st.integers(0, 10**10), st.floats(1e-9, 1e3)), min_size=3, max_size=12
    )
)
@example([(100, 4e-6), (1000, 7.47e-4), (1, 3e-6)])  # a full step would lead to times below 0
def test_fit_of_anything_ends_in_order_or_in_a_plain_error(samples):
    """
    Any measurements give ordered bounds or BadInput, because a learner's measurements may be
    nonsense.
    """
    try:
        found = fit(samples)
    except BadInput:
        return
    for interval in (found.latency_s, found.bandwidth_bytes_per_s, found.predict(1000)):
        assert 0 <= interval.low <= interval.value <= interval.high


def test_fit_never_says_that_a_message_takes_less_than_no_time():
    """
    The fit never predicts a negative time. Large sizes alone do not determine the latency, so its
    best value, 0, is also its lower bound.
    """
    found = fit([(1e8, 0.099), (2e8, 0.2), (4e8, 0.41), (8e8, 0.83)])
    assert found.latency_s.value == found.latency_s.low == 0.0
    assert 0.9e9 < found.bandwidth_bytes_per_s.value < 1.1e9
    assert found.predict(1e8).low >= 0


def test_fit_of_small_sizes_has_no_upper_bound_for_the_bandwidth():
    """
    Small sizes alone do not bound the bandwidth, so its interval has no upper end.
    """
    found = fit([(1, 1.00e-5), (2, 1.02e-5), (3, 0.99e-5), (4, 1.03e-5)])
    assert found.bandwidth_bytes_per_s.high == math.inf
