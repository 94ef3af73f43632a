"""
The duration of a batch: predicted by formula, computed by hand, and measured on ranks.
"""

from unittest import mock

import pytest
from worlds import run_world

from ddp_lessons.costs import Link
from ddp_lessons.errors import BadInput
from ddp_lessons.many_machines import (
    WAYS,
    Plan,
    Road,
    even_layout,
    foretold_points,
    foretold_s,
    measured_s,
    measuring,
    split_hosts,
)
from ddp_lessons.speed import least_step_s

LINK = Link(latency_s=0.01, bandwidth_bytes_per_s=6_000_000)
PLAN = Plan(2, 2, 240_000, 0.04, LINK)
BY_HAND_MS = {
    "flat": 40 + 6 * (10 + 10),
    "hierarchical": 40 + 2 * (10 + 20),
    "half": 40 + 6 * (10 + 5),
    "top-k": 40 + 3 * (10 + 0.8),
    "accumulate": 40 + 120 / 4,
    "local SGD": 40 + 120 / 8,
}


def test_by_hand_it_is_the_same():
    """
    The predictions of all methods in the lesson's table equal those computed by hand, in
    milliseconds.
    """
    assert {name: pytest.approx(ms) for name, ms in BY_HAND_MS.items()} == {
        name: 1000 * foretold_s(name, PLAN) for name in WAYS
    }


def test_a_model_for_a_plot_has_a_point_for_each_size():
    """
    A prediction for a plot has a point for each size and no band, because it is a single number.
    """
    points = foretold_points("flat", PLAN, [120_000, 240_000])
    assert points[1] == (240_000, *[pytest.approx(0.16)] * 3)
    assert [size for size, *_ in points] == [120_000, 240_000]


def test_links_within_hosts_and_packing_count():
    """
    Links within hosts and the time of packing are part of the prediction. With a fast link between
    hosts the remedies cost more than they save.
    """
    within, fast = Link(0.001, 1e9), Link(0.001, 1e9)
    plan = Plan(2, 4, 1_000_000, 0.04, fast, within, pack_s=0.02)
    flat, layered, half, top_k = (
        foretold_s(name, plan) for name in ("flat", "hierarchical", "half", "top-k")
    )
    assert layered == pytest.approx(0.04 + 6 * 0.001 + 1.5e-3 + 2 * 0.001 + 1e-3)
    assert min(half, top_k) > flat
    one_host = Plan(1, 4, 1_000_000, 0.04, Link(1.0, 1.0), within)
    assert foretold_s("flat", one_host) == pytest.approx(0.04 + 6 * 0.001 + 1.5e-3)
    assert foretold_s("flat", Plan(1, 1, 1_000_000, 0.04, fast)) == 0.04
    with pytest.raises(BadInput, match="got 'magic'"):
        foretold_s("magic", plan)


def test_measured_is_never_faster_than_foretold():
    """
    A measured duration is never below the prediction: sleep does not return early, however crowded
    the machine is. The slowest rank counts, because ranks whose messages cross hosts sleep longest.
    """
    worlds = run_world(4, measure)
    for name in WAYS:
        own = max(seen[name] for seen in worlds)
        assert own >= 0.95 * foretold_s(name, PLAN), name


def measure(rank, world_size):
    """
    Measure a batch with each method.
    """
    road = Road(split_hosts(even_layout(2, 2)), LINK)
    with mock.patch.object(measuring, "least_step_s", lambda step: least_step_s(step, most=3)):
        return {name: measured_s(name, road, PLAN) for name in WAYS}
