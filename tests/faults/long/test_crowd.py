"""
A test of a crowded server: six sessions run lessons 00 and 02 at once on this machine.
"""

import os

import pytest
from crowd import crowd, report

NUM_SESSIONS = int(os.environ.get("SESSIONS") or 6)
NUM_ROUNDS = int(os.environ.get("ROUNDS") or 3)

pytestmark = [pytest.mark.alone, pytest.mark.timeout(4 * 3600)]


def test_crowd_changes_nothing_but_time():
    """
    Load only costs time: no healthy rank is lost, no wrong culprit is named, and a cell fails only
    for the reason that its lesson intends.
    """
    runs = crowd(NUM_SESSIONS, NUM_ROUNDS)
    assert not any(run.said for run in runs), report(runs)
