"""
Ranks for the answers of a lesson, and cases that depend on the test's name.
"""

import secrets

import pytest
from draws import drawn_from

from ddp_lessons import start_ranks, stop_ranks

# No task is imported here: pytest's first process, which distributes the tests, needs no task.


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """
    Start four ranks for all answers that a worker tries in a row, and a folder for the learner's
    state. An answer must not disturb the next one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield start_ranks(4)
        stop_ranks()


@pytest.fixture(autouse=True)
def _same_draws(request, monkeypatch):
    """
    Draw the cases of a test from its name.
    """
    monkeypatch.setattr(secrets, "randbits", drawn_from(request.node.name).getrandbits)
