"""
Faults drawn at random: what no list of mishaps has thought of, on 2 to 8 ranks.

`FAULTS` says how many, 60 if it is not set. They play on one kernel after another, so that what
a fault leaves behind meets the next one.
"""

import os
import re

import pytest
from fault_kinds import KINDS
from random_faults import WORLD_SIZES, plan, play_all

NUM_FAULTS = int(os.environ.get("FAULTS") or 60)
FAULTS = [plan(seed) for seed in range(NUM_FAULTS)]
SETTLED_AFTER = 3
A_FAULT_S = 60.0
KEPT_MIB = 0.3
"""
What a kernel may keep of a fault: the client's record of some thirty messages, and its traceback.
"""


def test_plan_is_the_same_for_a_seed():
    """
    The command that repeats a fault is worth nothing if it draws another one.
    """
    assert [plan(seed) for seed in range(50)] == [plan(seed) for seed in range(50)]


def test_plan_reaches_every_kind():
    """
    A kind that is never drawn is never tried; a thousand faults try each on many ranks.
    """
    assert {plan(seed).kind for seed in range(len(KINDS))} == set(KINDS)
    faults = [plan(seed) for seed in range(1000)]
    assert {fault.world_size for fault in faults} == set(WORLD_SIZES)
    assert all(fault.culprit != fault.other < fault.world_size for fault in faults)
    under_load = sum(fault.is_under_load for fault in faults)
    assert 150 < under_load < 250  # a fifth
    assert all(fault.has_model for fault in faults if KINDS[fault.kind].needs_model)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_kind_is_python_and_a_pattern(kind):
    """
    A slip in a rare kind would show only when it is drawn.
    """
    faults = (plan(seed) for seed in range(10_000))
    fault = next(fault for fault in faults if fault.kind == kind)
    compile(fault.fill(KINDS[kind].cell), kind, "exec")
    re.compile(fault.fill(KINDS[kind].told))


@pytest.mark.soak
@pytest.mark.ranks
@pytest.mark.alone
@pytest.mark.timeout(120 + A_FAULT_S * NUM_FAULTS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_faults_at_random_leave_a_course_that_goes_on(world_size):
    """
    After each: prompt, culprit, variables, the next collective, processes. After all: no growth.
    """
    faults = [fault for fault in FAULTS if fault.world_size == world_size]
    if not faults:
        pytest.skip(f"none of {NUM_FAULTS} faults is for {world_size} ranks")
    failures, footprints = play_all(faults, world_size)
    assert not failures, "\n\n".join(failures)
    if len(footprints) > SETTLED_AFTER:
        settled, last = footprints[SETTLED_AFTER - 1], footprints[-1]
        num_since = len(footprints) - SETTLED_AFTER
        # One or two come and go. What has leaked does not go.
        fewest = min(each["fds"] for each in footprints[-SETTLED_AFTER:])
        assert fewest <= max(each["fds"] for each in footprints[:SETTLED_AFTER]), footprints
        assert last["threads"] <= max(each["threads"] for each in footprints[:SETTLED_AFTER])
        assert last["rss_mib"] - settled["rss_mib"] < KEPT_MIB * num_since, footprints
