"""
When a cell is ended without anybody pressing Stop: only if no rank can ever go on.
"""

import pytest
from made_up_places import at, call, finished, receiving, reducing, sending

from ddp_lessons.ranks.diagnosis.waiting import diagnose, is_deadlock

ON_A_KEY = at(7, "store.wait(['k'])", "store", groups={"0": [0, 1]})


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


@pytest.mark.parametrize("helper", ["thread", "child process"])
@pytest.mark.parametrize("where", ["running", "finished"])
def test_is_deadlock_leaves_a_rank_with_a_helper_alone(helper, where):
    """
    A thread that sends 5 s later was once overtaken: a right cell was ended as a deadlock.
    """
    places = {0: receiving(1), 1: finished()}
    places[0 if where == "running" else 1]["helpers"] = [helper]
    found = diagnose(places, [0])
    owner = "rank 0" if where == "running" else "rank 1"
    assert found.sentence == (
        "rank 1 finished the cell without a send; rank 0 waits in recv (line 1); "
        f"{owner} has a {helper} that may still act"
    )
    assert not is_deadlock(places, [0])


def test_is_deadlock_needs_an_answer_from_everybody():
    """
    What is read from outside, or not at all, does not say what other threads do.
    """
    places = {0: reducing(), 1: finished()}
    assert is_deadlock(places, [0])
    assert not is_deadlock({**places, 1: None}, [0])
    assert not is_deadlock({**places, 0: {**reducing(), "helpers": None}}, [0])


def test_store_wait_is_a_deadlock_once_nobody_can_set_the_key():
    """
    A key is set by a rank or by nobody; who waits for the waiting rank is told so.
    """
    places = {0: dict(ON_A_KEY), 1: dict(ON_A_KEY)}
    assert is_deadlock(places, [0, 1])
    assert diagnose(places, [0, 1]).sentence == (
        "ranks 0 and 1 all wait for a store's key (line 7), and none sets it"
    )
    places[1]["helpers"] = ["thread"]
    assert not is_deadlock(places, [0, 1])
    assert diagnose(places, [0, 1]).sentence == (
        "ranks 0 and 1 all wait for a store's key (line 7), and none sets it yet; "
        "rank 1 has a thread that may still act"
    )
    places[1] = reducing(groups={"0": [0, 1]})
    assert diagnose(places, [0, 1]).sentence == (
        "rank 0 is waiting for a store's key at line 7: store.wait(['k']); "
        "rank 1 waits for it in all_reduce 1 (line 2)"
    )
    assert is_deadlock(places, [0, 1])
    places[1] = at(3, "load()")
    assert not is_deadlock(places, [0, 1])
    assert not is_deadlock({0: {**ON_A_KEY, "timeout_s": 3.0}}, [0])


def test_message_of_another_tag_is_never_met():
    """
    Both wait for ever, though one sends and the other receives.
    """
    places = {0: {**sending(1), "tag": 1}, 1: {**receiving(0), "tag": 2}}
    assert is_deadlock(places, [0, 1])
    places[1]["tag"] = 1
    assert not is_deadlock(places, [0, 1])


def test_handle_of_a_message_is_told_from_that_of_a_collective():
    """
    After a collective in the same cell, waits for an irecv were once taken for its work.
    """
    waiting = {**at(4, "handle.wait()", "wait", [call("all_reduce", 1)]), "operation": "recv"}
    places = {rank: dict(waiting) for rank in range(2)}
    assert is_deadlock(places, [0, 1])
    assert diagnose(places, [0, 1]).sentence == (
        "ranks 0 and 1 all wait in recv (line 4), and none sends"
    )
    assert "irecv in wait" in diagnose(places, [0, 1]).table
    places[1]["operation"] = "send"  # it may be what rank 0 receives
    assert not is_deadlock(places, [0, 1])


def test_rank_outside_that_is_busy_may_come():
    """
    Two cells on two halves of the ranks: each may wait for the other half.
    """
    busy = {**at(None, ""), "outside": True}
    places = {0: reducing(groups={"0": [0, 1]}), 1: busy}
    assert not is_deadlock(places, [0, 1])
    places[1] = {**reducing(groups={"0": [0, 1]}), "outside": True}
    assert not is_deadlock(places, [0, 1])
