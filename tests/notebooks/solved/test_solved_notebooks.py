"""
A test that every solved exercise, run as a notebook, gives its stored outputs.
"""

import pytest
from answers import EXERCISES
from lessons import CELL_LIMIT_S, NOTEBOOK_LIMIT_S

from ddp_lessons.course.building.verify import verify


@pytest.mark.whole_notebook
@pytest.mark.timeout(NOTEBOOK_LIMIT_S + 60)
@pytest.mark.parametrize("stem", EXERCISES)
def test_solved_exercise_comes_out_again(stem):
    """
    A solved exercise gives its stored outputs, which a teacher may show. Other tests check the
    solutions alone, as answers.
    """
    verify(EXERCISES[stem], cell_timeout_s=CELL_LIMIT_S, deadline_s=NOTEBOOK_LIMIT_S)
