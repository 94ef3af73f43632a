"""
A cell never hangs: one fault of each family, judged by its message and by what is left after it.

Seconds do not count here. `tests/faults/prompt` plays all kinds of faults, and holds the promised
two seconds.
"""

import pytest
from fault_player import Kernels, fault_of
from faults import FAMILIES, GOLDEN, KINDS

WORLD_SIZE = 4
STALLED = "No progress"
"""
What a cell prints once it waits. Then Stop finds every rank at the line that the message names.
"""


@pytest.fixture(scope="module")
def kernels():
    """
    A kernel that the faults happen to one after another, as in a lesson.
    """
    kernels = Kernels()
    yield kernels
    kernels.close()


def test_golden_faults_are_one_of_each_family():
    """
    A family without its fault here would be played in long runs alone.
    """
    assert [sum(name in family for name in GOLDEN) for family in FAMILIES.values()] == [1] * 12


@pytest.mark.parametrize("kind", GOLDEN)
def test_fault_names_its_culprit_and_keeps_what_others_have(kernels, kind):
    """
    The right rank and line, the other ranks' variables, the next collective, no process left.
    """
    stop_at = STALLED if KINDS[kind].stops else None
    with kernels.player(WORLD_SIZE) as player:
        player.play(fault_of(kind, WORLD_SIZE), stop_at=stop_at)
