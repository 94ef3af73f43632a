"""
Every solved exercise, run as a notebook, gives the outputs that are stored in it.
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
    A teacher shows these outputs; their solutions alone are tested as answers, too.
    """
    verify(EXERCISES[stem], cell_timeout_s=CELL_LIMIT_S, deadline_s=NOTEBOOK_LIMIT_S)
