"""
Reports from raw times: summaries, speed-ups, stragglers, predictions.
"""

import random
from statistics import median

import pytest

from ddp_lessons.costs import Link, StepModel, amdahl_speedup, collective_s
from ddp_lessons.errors import BadInput
from ddp_lessons.speed import (
    bytes_in_s,
    efficiency,
    error_share,
    find_straggler,
    fit_all_reduce,
    gustafson_speedup,
    highest_speedup,
    mean_speedup,
    naive_step_s,
    of_slowest,
    predict_step_s,
    report_speedup,
    serial_share_of,
    speedup,
    summarise,
    who_waits_least,
)


def test_summary_leaves_the_first_steps_out():
    """
    A summary leaves the warm-up steps out: one step of 9 s would make the mean three times as long.
    """
    summary = summarise([9.0, 1.0, 3.0, 2.0], num_warm_up=1)
    assert (summary.median_s, summary.fastest_s, summary.slowest_s) == (2, 1, 3)
    assert (summary.num_steps, summary.num_warm_up) == (3, 1)
    assert summary.spread == 1.0
    assert summarise([4.0], num_warm_up=0).median_s == 4


@pytest.mark.parametrize("times_s", [[], [1.0], [0.0, 1.0], [1.0, -1.0]])
def test_summary_of_no_step_is_refused(times_s):
    """
    A summary without steps is refused, because the error of a median of nothing is hard to
    understand.
    """
    with pytest.raises(BadInput, match=r"Nothing to report: .*1 of warm-up"):
        summarise(times_s)


def test_step_of_all_ranks_is_that_of_the_slowest():
    """
    The time of a step is that of the slowest rank, which may differ from step to step.
    """
    assert of_slowest([[1.0, 5.0], [2.0, 4.0]]) == [2, 5]
    for times_s in ([], [[1.0], [1.0, 2.0]]):
        with pytest.raises(BadInput, match="Bad times"):
            of_slowest(times_s)


def test_report_compares_samples_a_second_by_medians():
    """
    A report compares samples a second by medians: 4 ranks with a batch each process four times the
    samples in 1.25 of the time, which is 3.2 times as fast, or 80 %.
    """
    report = report_speedup([9, 1, 1, 1], 32, [9, 1.25, 1.0, 1.5], 128, world_size=4)
    assert (report.speedup, report.efficiency) == (3.2, 0.8)
    assert str(report) == (
        "3.20 times the samples a second on 4 ranks (80% efficiency): medians of 3 and 3 steps "
        "after 1 of warm-up; the fastest and the slowest are 0% and 40% apart"
    )
    # The same times with all steps and their means: the warm-up is in the first list only.
    assert mean_speedup([9, 1, 1, 1], [0.5, 0.5]) == 6
    with pytest.raises(BadInput, match="Bad throughput"):
        speedup(1.0, 0.0)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_serial_share_is_what_amdahl_and_gustafson_start_from(world_size):
    """
    The serial share predicts a speed-up by Amdahl's law, and is computed back from it. Gustafson's
    law uses the same share.
    """
    for share in (0.0, 0.1, 0.5, 1.0):
        gain = amdahl_speedup(share, world_size)
        assert serial_share_of(gain, world_size) == pytest.approx(share, abs=1e-12)
        assert efficiency(gain, world_size) == gain / world_size
        assert gustafson_speedup(share, world_size) == share + (1 - share) * world_size
    assert highest_speedup(0.1) == 10
    assert amdahl_speedup(0.1, 10**9) < highest_speedup(0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: highest_speedup(0.0), "Bad serial_share"),
        (lambda: gustafson_speedup(2.0, 2), "Bad serial_share"),
        (lambda: serial_share_of(1.0, 1), "Nothing was divided"),
        (lambda: serial_share_of(0.0, 2), "Nothing was divided"),
        (lambda: find_straggler([[1.0], [1.0]]), "Too few steps"),
        (
            lambda: bytes_in_s(0.06, 16, Link(0.002, 1e7)),
            "Too short: expected more than the 0.06 s",
        ),
        (lambda: predict_step_s(2, 1.0, [1.0], [], Link(0.0, 1.0)), "Bad buckets"),
    ],
)
def test_reports_refuse_what_cannot_be(call, message):
    """
    Impossible inputs are refused, because they would give a wrong sentence.
    """
    with pytest.raises(BadInput, match=message):
        call()


def test_straggler_is_slow_in_most_steps_and_not_in_one():
    """
    A straggler is slow in most steps. Warm-up and a single pause of other ranks do not count,
    although the mean would name those ranks.
    """
    own_s = [[9.0, 1, 1, 1, 1, 1], [1.0, 1, 1, 90, 1, 1], [1.0, 2, 2, 2, 2, 2]]
    assert find_straggler(own_s) == 2
    assert max(range(3), key=lambda rank: sum(own_s[rank])) == 1
    assert find_straggler([[1.0, 1.0], [1.0, 1.2]]) is None  # 20 % slower is not clear enough
    assert find_straggler([[1.0, 1.0], [1.0, 1.2]], least_share=0.1) == 1
    assert find_straggler([[1.0, 7.0]]) is None
    assert who_waits_least([[3.0, 1.0, 3.0], [0.0, 0.0, 5.0]]) == 1


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(10))
def test_prediction_is_what_a_run_on_paper_takes(world_size, seed):
    """
    The prediction equals a simulation of the step, second by second, with a queue of buckets and a
    link that is busy or idle.
    """
    draw = random.Random(f"{world_size} {seed}")
    link = Link(draw.uniform(0.1, 1.0), draw.uniform(1.0, 10.0))
    num = draw.randint(1, 4)
    backward_s = [draw.uniform(0, 3) for _ in range(num)]
    sizes = [draw.randint(1, 12) * world_size for _ in range(num)]
    now_s = free_s = 2.0
    for part_s, size in zip(backward_s, sizes, strict=True):
        now_s += part_s
        free_s = max(free_s, now_s)
        for _ in range(2 * (world_size - 1)):
            free_s += link.message_s(size / world_size)
    expected = max(now_s, free_s) + 0.5
    got = predict_step_s(world_size, 2.0, backward_s, sizes, link, optimizer_s=0.5)
    assert got == pytest.approx(expected, rel=1e-12)
    in_a_row = [2 * (world_size - 1) * link.message_s(size / world_size) for size in sizes]
    assert naive_step_s(2.0, backward_s, in_a_row, 0.5) >= got * (1 - 1e-12)


def test_prediction_agrees_with_the_step_model_where_nothing_overlaps():
    """
    With one bucket nothing overlaps, because it is ready when backward ends. So the prediction
    equals that of the step model.
    """
    link = Link(0.5, 4.0)
    got = predict_step_s(4, 1.0, [2.0], [8], link, optimizer_s=0.25)
    assert got == StepModel(1.0, 2.0, 0.25, 6 * 0.5 + 1.5 * 8 / 4).step_s


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_fit_of_all_reduces_finds_the_link(world_size):
    """
    The fit of all-reduce times finds the link, which then predicts the times of other numbers of
    ranks that share it.
    """
    link, rounds = Link(0.01, 1000.0), 2 * (world_size - 1)
    times = [(n, rounds * link.message_s(n / world_size)) for n in (12, 1200, 120000)]
    found = fit_all_reduce(times, world_size).link
    assert found.latency_s == pytest.approx(0.01)
    assert found.bandwidth_bytes_per_s == pytest.approx(1000.0)
    assert error_share(1.1, 1.0) == pytest.approx(0.1)
    assert median([error_share(0.9, 1.0)]) == pytest.approx(0.1)


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_bytes_of_some_seconds_take_these_seconds(world_size):
    """
    An all-reduce of `bytes_in_s` bytes takes the given seconds, less at most one number a chunk.
    """
    link = Link(0.0005, 10_000_000)
    num_bytes = bytes_in_s(0.06, world_size, link)
    assert num_bytes % (4 * world_size) == 0
    seconds = collective_s("all_reduce", "ring", world_size, num_bytes, link)
    assert -1e-12 < 0.06 - seconds < 2 * (world_size - 1) * 4 / 10_000_000 + 1e-12
    assert bytes_in_s(0.06, 4, Link(0.002, 10_000_000)) == 320_000
