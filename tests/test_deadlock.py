"""
When a cell is ended without anybody pressing Stop: only if no rank can ever go on.
"""

from made_up_places import at, call, finished, receiving, reducing, sending

from ddp_lessons.ranks.diagnosis import is_deadlock


def test_is_deadlock_leaves_a_time_limit_alone():
    """
    A learner who gives a collective 5 s wants to see torch's own error, not ours before it.
    """
    short = [call("all_reduce", 1, timeout_s=5.0)]
    barrier = at(2, "dist.monitored_barrier(timeout=limit)", "monitored_barrier", timeout_s=5.0)
    assert not is_deadlock({0: barrier, 1: finished()}, [0])
    assert not is_deadlock({0: at(2, "", "all_reduce", short), 1: finished()}, [0])
    assert is_deadlock({0: reducing(timeout_s=600.0), 1: finished()}, [0])
    assert not is_deadlock({0: barrier, 1: reducing()}, [0, 1])


def test_is_deadlock_lets_work_under_way_finish():
    """
    All ranks are in the same collective, or a send has met its recv: a slow link is no mistake.
    """
    assert not is_deadlock({0: reducing(2), 1: reducing(2)}, [0, 1])
    assert not is_deadlock({0: sending(1), 1: receiving(0)}, [0, 1])
    assert not is_deadlock({0: sending(1), 1: receiving(None)}, [0, 1])
    chain = {0: sending(1), 1: receiving(0), 2: receiving(1)}
    assert not is_deadlock(chain, [0, 1, 2])
    assert is_deadlock({0: sending(1), 1: receiving(2), 2: receiving(1)}, [0, 1, 2])
    assert not is_deadlock({}, [])
