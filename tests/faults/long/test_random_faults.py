"""
Faults drawn at random: what no list of faults has thought of, on 2 to 8 ranks.

`FAULTS` says how many, 60 if it is not set. They play on one kernel after another, so that what
a fault leaves behind meets the next one.
"""

import os

import pytest
from fault_player import PROMPT_S, Kernels
from random_faults import plan

NUM_FAULTS = int(os.environ.get("FAULTS") or 60)
FAULTS = sorted(map(plan, range(NUM_FAULTS)), key=lambda fault: fault.world_size)

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def kernels():
    """
    A kernel for each number of ranks.
    """
    kernels = Kernels()
    yield kernels
    kernels.close()


@pytest.mark.parametrize(
    "fault", FAULTS, ids=lambda fault: f"seed {fault.seed}, {fault.kind} on {fault.world_size}"
)
def test_fault_at_random_leaves_a_course_that_goes_on(kernels, fault):
    """
    Prompt, culprit, variables, the next collective, processes.
    """
    with kernels.player(fault.world_size) as player:
        player.play(fault, limit_s=PROMPT_S)
