"""
The bank: every wrong answer gets its own hint, and every unusual right answer passes.
"""

import pytest
from answers import TASKS, UNUSUAL, WRONG, expect_own_hint, is_timed, name_of

from ddp_lessons.checks.kit.checking import run_and_judge
from ddp_lessons.ranks.kernel.cells import run_cell

SPINNING = """
import threading

may_end = threading.Event()

def spin():
    while not may_end.is_set():
        pass

threading.Thread(target=spin, daemon=True).start()
"""


@pytest.mark.parametrize(
    "answer", [answer for answer in WRONG if not is_timed(answer)], ids=name_of
)
def test_wrong_answer_gets_its_own_hint(ranks, answer):
    """
    The check names this mistake and no other, with the case and the hint for it.
    """
    expect_own_hint(ranks, answer)


@pytest.mark.alone
@pytest.mark.parametrize("answer", [answer for answer in WRONG if is_timed(answer)], ids=name_of)
def test_wrong_answer_that_only_the_clock_shows_gets_its_own_hint(ranks, answer):
    """
    On a crowded machine the check accepts such an answer in case of doubt, so this test runs alone.
    """
    expect_own_hint(ranks, answer)


@pytest.mark.parametrize("answer", UNUSUAL, ids=name_of)
def test_unusual_right_answer_passes(ranks, answer):
    """
    Checks judge what ranks do, not how an answer is written.
    """
    run_cell(ranks, answer.source)
    assert run_and_judge(TASKS[answer.task], ranks)


def test_thread_of_an_earlier_answer_does_not_refuse_a_right_one(ranks):
    """
    A thread that an earlier answer has left on a rank, and that never sleeps, does not keep the
    check of task 13.3 waiting until its time is over.
    """
    [answer] = [one for one in UNUSUAL if one.name == "gathers on rank 0, and all read"]
    run_cell(ranks, SPINNING)
    try:
        run_cell(ranks, answer.source)
        assert run_and_judge(TASKS[answer.task], ranks)
    finally:
        run_cell(ranks, "may_end.set()")
