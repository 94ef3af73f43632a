"""
Tables of pipelines: their contents, the errors that are refused, and the idle time of their ranks.

No rank runs here, because a table is data.
"""

import itertools
import random

import pytest

from ddp_lessons.beyond_ddp.pipeline import (
    Action,
    bubble,
    check_table,
    first_fault,
    gpipe,
    interleaved,
    most_alive,
    one_f_one_b,
    timetable,
    total_ticks,
    waiting_for_ever,
)
from ddp_lessons.beyond_ddp.pipeline.checking import actions_of
from ddp_lessons.costs import bubble_share, pipeline_sent_bytes
from ddp_lessons.errors import BadInput

RANKS = [1, 2, 3, 4, 7]
MICROBATCHES = [1, 2, 3, 4, 5, 8, 16]
every_size = pytest.mark.parametrize(
    ("num_ranks", "num_microbatches"), list(itertools.product(RANKS, MICROBATCHES))
)


def words(row):
    """
    Return a row as text, such as "F0 B0".
    """
    return " ".join(f"{kind}{number}" for kind, number, _ in row)


def test_rows_are_those_of_the_papers():
    """
    The rows are those of the papers, written out once, so that the other tests can be trusted.
    """
    assert [words(row) for row in gpipe(2, 3)] == ["F0 F1 F2 B0 B1 B2"] * 2
    assert [words(row) for row in one_f_one_b(4, 4)] == [
        "F0 F1 F2 F3 B0 B1 B2 B3",
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    assert [words(row) for row in one_f_one_b(3, 1)] == ["F0 B0"] * 3
    assert interleaved(2, 2, 2)[1] == [
        ("F", 0, 0), ("F", 1, 0), ("F", 0, 1), ("B", 0, 1), ("F", 1, 1), ("B", 1, 1),
        ("B", 0, 0), ("B", 1, 0),
    ]  # fmt: skip
    assert str(Action("F", 3)) == "F3"
    assert str(Action("B", 3, 1)) == "B3 of part 1"


@every_size
@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_tables_are_whole_and_idle_as_foretold(make, num_ranks, num_microbatches):
    """
    Both tables are complete, and their idle share is that of the formula: also with fewer
    microbatches than ranks, and for any duration of a backward.
    """
    table = make(num_ranks, num_microbatches)
    check_table(table, num_microbatches)
    foretold = bubble_share(num_ranks, num_microbatches)
    for forward, backward in ((1, 2), (1, 1), (3, 5)):
        spans = timetable(table, forward, backward)
        ticks = (forward + backward) * (num_microbatches + num_ranks - 1)
        assert total_ticks(spans) == ticks
        assert bubble(spans) == pytest.approx(foretold, abs=1e-15)  # one division of whole numbers


@every_size
def test_1f1b_keeps_fewer_microbatches_alive(num_ranks, num_microbatches):
    """
    GPipe keeps all microbatches alive on every rank; 1F1B keeps as many as there are ranks from
    this one to the last.
    """
    ranks = range(num_ranks)
    kept = [most_alive(row) for row in gpipe(num_ranks, num_microbatches)]
    assert kept == [num_microbatches for _ in ranks]
    kept = [most_alive(row) for row in one_f_one_b(num_ranks, num_microbatches)]
    assert kept == [min(num_microbatches, num_ranks - rank) for rank in ranks]


@pytest.mark.parametrize("num_parts", [1, 2, 3])
@pytest.mark.parametrize(("num_ranks", "times"), list(itertools.product([1, 2, 3, 4], [1, 2, 3])))
def test_interleaved_parts_idle_less(num_ranks, times, num_parts):
    """
    With v parts a rank, each 1/v as long, the bubble is nearly 1/v as large.
    """
    num_microbatches = num_ranks * times
    table = interleaved(num_ranks, num_microbatches, num_parts)
    check_table(table, num_microbatches, num_parts)
    foretold = bubble_share(num_ranks, num_microbatches, num_parts)
    assert bubble(timetable(table)) == pytest.approx(foretold, abs=1e-15)
    assert foretold <= bubble_share(num_ranks, num_microbatches)


def test_timetable_says_which_part_a_microbatch_is_in():
    """
    The timetable names a microbatch's part by a letter: with two parts a rank, b is the second.
    """
    last = timetable(interleaved(2, 2, 2))[1]
    assert [f"{kind}{label}" for kind, label, _, _ in last] == [
        "F0a", "F1a", "F0b", "B0b", "F1b", "B1b", "B0a", "B1a",
    ]  # fmt: skip
    assert last[0] == ("F", "0a", 1, 2)
    assert timetable(gpipe(1, 1)) == [[("F", "0", 0, 1), ("B", "0", 1, 3)]]


def test_interleaved_parts_keep_more_alive():
    """
    Interleaved parts keep more microbatches alive: as many as were measured with torch's own
    schedule.
    """
    assert [most_alive(row) for row in interleaved(4, 4, 2)] == [8, 8, 7, 5]


@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(2, 2), (2, 5), (4, 4), (3, 8)])
def test_waiting_sends_are_enough_for_gpipe_and_not_for_1f1b(num_ranks, num_microbatches):
    """
    If a send blocks until it is received, GPipe still ends and 1F1B does not: one neighbour sends
    forward while the other sends backward, and both wait.
    """
    check_table(gpipe(num_ranks, num_microbatches), num_microbatches, sends_wait=True)
    table = one_f_one_b(num_ranks, num_microbatches)
    assert waiting_for_ever(table) == {}
    fault = first_fault(table, num_microbatches, sends_wait=True)
    assert fault.kind == "stuck"
    assert "waits in its send" in fault.text


def test_who_waits_is_told_with_what_and_for_whom():
    """
    The report of a stuck pipeline names each rank's send and its peer. The case is the lesson's:
    two ranks of 1F1B with blocking sends.
    """
    stuck = waiting_for_ever(one_f_one_b(2, 4), sends_wait=True)
    assert {rank: str(call) for rank, call in stuck.items()} == {
        0: "send F1 to rank 1",
        1: "send B0 to rank 0",
    }
    assert waiting_for_ever([[], []]) == {}


FAULTY = {
    "form": [["F0"], [("F", 0), ("B", 0)]],
    "unknown": [[("F", 0), ("B", 0), ("F", 1), ("B", 1)]] * 2,
    "twice": [[("F", 0), ("F", 0), ("B", 0)]] * 2,
    "missing": [[("F", 0)]] * 2,
    "early": [[("B", 0), ("F", 0)]] * 2,
}


@pytest.mark.parametrize("kind", FAULTY)
def test_faults_of_a_row_are_told_apart(kind):
    """
    Each fault of a row has its own kind, and the plainest comes first: a message about waiting does
    not help if a backward is missing.
    """
    fault = first_fault(FAULTY[kind], 1)
    assert (fault.kind, fault.rank) == (kind, 0)
    with pytest.raises(BadInput, match="Bad table"):
        check_table(FAULTY[kind], 1)


@pytest.mark.parametrize("row", [5, "F0", [0], [("F",)], [("F", 0.0)], [("F", True)], [("F", "0")]])
def test_what_is_no_row_of_actions_is_refused(row):
    """
    Rows with strings, flags or wrong types are refused, because they look like actions.
    """
    assert first_fault([row], 1).kind == "form"
    with pytest.raises(BadInput, match="Give each rank a list"):
        actions_of(row)


def test_a_backward_without_its_forward_is_missing_it():
    """
    A backward without its forward is reported as missing, and not as too early.
    """
    fault = first_fault([[("B", 0)]], 1)
    assert (fault.kind, fault.text) == ("missing", "Rank 0 does B0 before F0.")
    assert first_fault([[("X", 0)]], 1).kind == "unknown"


def test_an_order_that_never_ends_has_no_time():
    """
    An order that never ends has no timetable: rank 0 wants B0 before F1, and rank 1 wants F1 first.
    """
    crossed = [
        [("F", 0), ("B", 0), ("F", 1), ("B", 1)],
        [("F", 1), ("B", 1), ("F", 0), ("B", 0)],
    ]
    assert first_fault(crossed, 2).kind == "stuck"
    with pytest.raises(BadInput, match="No time at which it ends"):
        timetable(crossed)
    with pytest.raises(BadInput, match="in an order in which nobody waits for ever"):
        check_table(crossed, 2)


def test_random_orders_end_exactly_if_a_clock_says_so():
    """
    Two ways to play a table, by messages and by ticks, agree on which random orders end.
    """
    draw = random.Random(15)
    num_stuck = 0
    for _ in range(200):
        num_ranks, num_microbatches = draw.randint(1, 4), draw.randint(1, 3)
        table = [_shuffled(draw, num_microbatches) for _ in range(num_ranks)]
        is_stuck = first_fault(table, num_microbatches) is not None
        num_stuck += is_stuck
        try:
            spans = timetable(table)
        except BadInput:
            assert is_stuck
        else:
            assert not is_stuck
            assert 0 <= bubble(spans) < 1
            assert total_ticks(spans) >= 3 * (num_microbatches + num_ranks - 1)
        if is_stuck:  # blocking sends do not repair it
            assert first_fault(table, num_microbatches, sends_wait=True) is not None
    assert 20 < num_stuck < 180


def _shuffled(draw, num_microbatches):
    # The order is random, but a forward comes before its backward.
    numbers = [number for number in range(num_microbatches) for _ in "FB"]
    draw.shuffle(numbers)
    seen, row = set(), []
    for number in numbers:
        row.append(("B" if number in seen else "F", number))
        seen.add(number)
    return row


def test_what_no_pipeline_has_is_refused():
    """
    Pipelines without ranks or microbatches, uneven pieces and tables without actions are refused.
    """
    for make in (gpipe, one_f_one_b):
        for sizes in ((0, 1), (1, 0)):
            with pytest.raises(BadInput, match="No such pipeline"):
                make(*sizes)
    with pytest.raises(BadInput, match="expected a multiple of 4 ranks"):
        interleaved(4, 6, 2)
    with pytest.raises(BadInput, match="No bubble"):
        bubble([[], []])


def test_costs_of_a_pipeline():
    """
    The cost formulas give known values. With one rank there is no waiting and no sending.
    """
    assert bubble_share(1, 5) == 0
    assert bubble_share(4, 4) == 3 / 7
    assert bubble_share(4, 4, 2) == 3 / 11
    assert pipeline_sent_bytes(1, 4, 100, 3) == [0]
    assert pipeline_sent_bytes(4, 4, 2048) == [8192, 16384, 16384, 8192]
    assert pipeline_sent_bytes(4, 4, 2048, 2) == [24576, 32768, 32768, 24576]
    for count in ((0, 1), (1, 0), (1, 1, 0)):
        with pytest.raises(BadInput, match="at least 1"):
            bubble_share(*count)
    with pytest.raises(BadInput, match="Bad activation_bytes"):
        pipeline_sent_bytes(2, 1, -1)
