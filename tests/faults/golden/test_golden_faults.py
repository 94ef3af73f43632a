"""
Tests that a cell never hangs: one fault of each family, judged by its message and its leftovers.

These tests do not measure time. `tests/faults/prompt` plays all kinds of faults, and requires that
each ends within the promised two seconds.
"""

import pytest
from fault_player import Kernels, fault_of
from faults import FAMILIES, GOLDEN, KINDS

WORLD_SIZE = 4
STALLED = "No progress"
"""
The line that a cell prints once it waits. A Stop after it finds every rank at the line that the
message names.
"""


@pytest.fixture(scope="module")
def kernels():
    """
    Yield one kernel on which all faults happen, one after another, as in a lesson.
    """
    kernels = Kernels()
    yield kernels
    kernels.close()


def test_golden_faults_are_one_of_each_family():
    """
    GOLDEN holds exactly one fault of each family: any other family would only be tested in long
    runs.
    """
    golden = {name: sum(kind in GOLDEN for kind in family) for name, family in FAMILIES.items()}
    assert golden == dict.fromkeys(FAMILIES, 1)


@pytest.mark.parametrize("kind", GOLDEN)
def test_fault_names_its_culprit_and_keeps_what_others_have(kernels, kind):
    """
    The message names the right rank and line, the other ranks keep their variables, the next
    collective works, and no process is left.
    """
    stop_at = STALLED if KINDS[kind].needs_stop else None
    with kernels.player(WORLD_SIZE) as player:
        player.play(fault_of(kind, WORLD_SIZE), stop_at=stop_at)
