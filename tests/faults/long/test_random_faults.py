"""
Tests with faults drawn at random on 2 to 8 ranks, to find those that no list of faults contains.

The environment variable `FAULTS` sets their number; the default is 60. All faults of one world
size are played on the same kernel, so that leftovers of one fault can disturb the next.
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
Memory that a kernel may keep for each fault: the client's record of some thirty messages, and the
traceback.
"""
PRINT_MUCH = "print('x' * 200_000)"
"""
At the first message of 64 KiB or more pyzmq starts a thread that never ends. Its seven descriptors
are no leak, so the test starts it before it counts.
"""

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def kernels():
    """
    Yield a pool with one kernel for each number of ranks.
    """
    kernels = Kernels()
    yield kernels
    kernels.close()


@pytest.mark.parametrize(
    "fault", FAULTS, ids=lambda fault: f"seed {fault.seed}, {fault.kind} on {fault.world_size}"
)
def test_fault_at_random_leaves_a_course_that_goes_on(kernels, fault):
    """
    The error comes promptly and names the culprit, the other ranks keep their variables, the next
    collective works, and no process is left.
    """
    with kernels.player(fault.world_size) as player:
        player.play(fault, limit_s=PROMPT_S)


def test_kernel_holds_no_more_after_many_faults(kernels):
    """
    Many faults leave the kernel's descriptors, threads and memory as they were: leaks would add up.
    """
    with kernels.player(4) as player:
        player.kernel.run(PRINT_MUCH)
        footprints = []
        for kind in GOLDEN:
            player.play(fault_of(kind, 4))
            footprints.append(player.footprint())
    settled, last = footprints[SETTLED_AFTER - 1], footprints[-1]
    # One or two descriptors are opened and closed all the time, so compare the smallest count.
    fewest = min(each["fds"] for each in footprints[-SETTLED_AFTER:])
    assert fewest <= max(each["fds"] for each in footprints[:SETTLED_AFTER]), footprints
    assert last["threads"] <= max(each["threads"] for each in footprints[:SETTLED_AFTER])
    num_since = len(footprints) - SETTLED_AFTER
    assert last["rss_mib"] - settled["rss_mib"] < KEPT_MIB * num_since, footprints
