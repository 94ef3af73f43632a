"""
Faults drawn at random: what no list of faults has thought of, on 2 to 8 ranks.

`FAULTS` says how many, 60 if it is not set. They play on one kernel after another, so that what
a fault leaves behind meets the next one.
"""

import os

import pytest
from fault_player import PROMPT_S, Kernels, fault_of
from faults import GOLDEN
from random_faults import plan

NUM_FAULTS = int(os.environ.get("FAULTS") or 60)
FAULTS = sorted(map(plan, range(NUM_FAULTS)), key=lambda fault: fault.world_size)

SETTLED_AFTER = 3
KEPT_MIB = 0.3
"""
What a kernel may keep of a fault: the client's record of some thirty messages, and its traceback.
"""
PRINT_MUCH = "print('x' * 200_000)"
"""
For a message of 64 KiB pyzmq starts a thread that it keeps: seven descriptors, and no leak.
"""

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


def test_kernel_holds_no_more_after_many_faults(kernels):
    """
    Descriptors, threads and memory of the kernel: what has leaked does not go.
    """
    with kernels.player(4) as player:
        player.kernel.run(PRINT_MUCH)
        footprints = []
        for kind in GOLDEN:
            player.play(fault_of(kind, 4))
            footprints.append(player.footprint())
    settled, last = footprints[SETTLED_AFTER - 1], footprints[-1]
    # One or two descriptors come and go.
    fewest = min(each["fds"] for each in footprints[-SETTLED_AFTER:])
    assert fewest <= max(each["fds"] for each in footprints[:SETTLED_AFTER]), footprints
    assert last["threads"] <= max(each["threads"] for each in footprints[:SETTLED_AFTER])
    num_since = len(footprints) - SETTLED_AFTER
    assert last["rss_mib"] - settled["rss_mib"] < KEPT_MIB * num_since, footprints
