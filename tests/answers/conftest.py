"""
Ranks for the answers of a lesson, and cases that are drawn from the test's name.
"""

import random

import pytest
from answers import DRAWS

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.checks.kit import tasks

_ranks_of: dict = {}  # "lesson": the lesson that the ranks serve; "ranks": the ranks


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """
    A folder for what a learner has solved.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield
    stop_ranks()


@pytest.fixture(autouse=True)
def _same_draws(request, monkeypatch):
    """
    Draw the cases of a test from its name.
    """
    drawn = random.Random(f"{DRAWS} {request.node.name}")
    monkeypatch.setattr(tasks.secrets, "randbits", drawn.getrandbits)


@pytest.fixture
def ranks(request, state):
    """
    Four ranks for all answers of a lesson: what one leaves behind, the next one has to bear.
    """
    lesson = request.node.callspec.id.partition(".")[0]
    if _ranks_of.get("lesson") != lesson:
        stop_ranks()
        _ranks_of.update(lesson=lesson, ranks=start_ranks(4))
    return _ranks_of["ranks"]
