"""
Ranks for the answers of a lesson, and cases that are drawn from the test's name.
"""

import random

import pytest
from answers import DRAWS

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.checks.kit import tasks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """
    Four ranks for all answers that a worker tries in a row, and a folder for what is solved: what
    one answer leaves behind, the next one has to bear.
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
    drawn = random.Random(f"{DRAWS} {request.node.name}")
    monkeypatch.setattr(tasks.secrets, "randbits", drawn.getrandbits)
