"""
The simulated clock of asynchronous training: its order of events is the same on every run.
"""

import pytest

from ddp_lessons.asynchronous import Arrival, Clock, finish_ticks, worker_spans
from ddp_lessons.errors import BadInput


def test_clock_says_whose_step_ends_next():
    """
    The clock names the rank whose step ends next. If two steps end in one tick, the lower rank is
    first, so that the order never depends on chance.
    """
    clock = Clock(lambda rank, step: 3 if rank == 2 else 1)
    for rank in (2, 1):
        clock.begin(rank)
    came = []
    for _ in range(6):
        rank = clock.next()
        came.append((clock.now, rank))
        clock.begin(rank)
    assert came == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1), (5, 1)]


def test_clock_may_ask_for_the_number_of_the_step():
    """
    The duration of a step may depend on its number, so that a rank can be slow for a while only.
    """
    clock = Clock(lambda rank, step: step + 1)
    times = []
    for _ in range(3):
        clock.begin(0)
        clock.next()
        times.append(clock.now)
    assert times == [1, 3, 6]


def test_clock_refuses_steps_without_time_and_nothing_under_way():
    """
    A step without duration, and a clock without a running step, are refused: both would be waited
    for without end.
    """
    with pytest.raises(BadInput, match=r"Nothing is under way.*Call begin first"):
        Clock(lambda rank, step: 1).next()
    with pytest.raises(
        BadInput, match=r"Bad ticks: expected 1 or more.*got 0 for step 0 of rank 5"
    ):
        Clock(lambda rank, step: 0).begin(5)


def _turns(rank, step):
    return 3 if step % 4 == rank else 1


@pytest.mark.parametrize(("every", "ticks"), [(1, 24), (4, 12), (8, 12)])
def test_who_talks_waits_for_the_last(every, ticks):
    """
    A rank that communicates waits for the slowest. Eight steps, of which each rank is slow in two,
    end at the ticks that were worked out by hand.
    """
    talks = [
        [(0, 1, 2, 3) if (step + 1) % every == 0 else () for step in range(8)] for _ in range(4)
    ]
    assert finish_ticks(talks, _turns) == ticks


def test_who_talks_with_nobody_waits_for_nobody():
    """
    A rank that communicates with no other rank waits for none: one slow rank ends late, and alone.
    """
    assert finish_ticks([[(), ()], [(), ()]], lambda rank, step: 1 + 4 * rank) == 10
    # Rank 0 waits for rank 1 once: 5 ticks, then one tick for its own step.
    assert finish_ticks([[(1,), ()], [(0,), ()]], lambda rank, step: 1 + 4 * rank) == 10


def test_spans_of_workers_show_computing_and_waiting():
    """
    Spans show when a worker computes and when it waits. The picture is drawn from them.
    """
    log = [Arrival(1, 0, 0, 0, 2), Arrival(2, 0, 1, 0, 3), Arrival(1, 1, 1, 3, 5)]
    assert worker_spans(log, 3) == [
        [],
        [("compute", 0, 2, "age 0"), ("waiting", 2, 3, "waits"), ("compute", 3, 5, "age 1")],
        [("compute", 0, 3, "age 1")],
    ]
