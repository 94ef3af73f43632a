"""
The bank: every wrong answer gets its own hint, and every unusual right answer passes.
"""

import pytest
from answers import TASKS, UNUSUAL, WRONG, expect_own_hint, is_timed, name_of

from ddp_lessons.checks.kit.checking import run_and_judge
from ddp_lessons.ranks.kernel.cells import run_cell


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
