"""
When a cell is ended automatically as a deadlock: only if no rank can ever go on.
"""

from dataclasses import replace

import pytest
from fake_snapshots import at, call, finished, receiving, reducing, sending

from ddp_lessons.ranks.diagnosis.manual_joins import short_joins
from ddp_lessons.ranks.diagnosis.wait_graph import diagnose, is_deadlock
from ddp_lessons.ranks.messages.snapshot import FormingGroup

ON_A_KEY = at(7, "store.wait(['k'])", "store", groups={"0": [0, 1]})


def test_is_deadlock_leaves_a_time_limit_alone():
    """
    A call with a time limit of its own is no deadlock, because a learner who sets a timeout of 5 s
    wants to see torch's own error.
    """
    short = [call("all_reduce", 1, timeout_s=5.0)]
    barrier = at(2, "dist.monitored_barrier(timeout=limit)", "monitored_barrier", timeout_s=5.0)
    assert not is_deadlock({0: barrier, 1: finished()}, [0])
    assert not is_deadlock({0: at(2, "", "all_reduce", short), 1: finished()}, [0])
    assert is_deadlock({0: reducing(timeout_s=600.0), 1: finished()}, [0])
    assert not is_deadlock({0: barrier, 1: reducing()}, [0, 1])


def test_is_deadlock_lets_work_under_way_finish():
    """
    Communication that can complete is no deadlock: all ranks are in the same collective, or a send
    has met its recv, and the link may be slow.
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
    A rank with a running thread or child process is in no deadlock. A right cell, whose thread
    would have sent 5 s later, was once ended as a deadlock.
    """
    snapshots = {0: receiving(1), 1: finished()}
    rank = 0 if where == "running" else 1
    snapshots[rank] = replace(snapshots[rank], helpers=[helper])
    found = diagnose(snapshots, [0])
    owner = "rank 0" if where == "running" else "rank 1"
    assert found.sentence == (
        "rank 1 finished the cell without a send; rank 0 waits in recv (line 1); "
        f"{owner} has a {helper} that may still act"
    )
    assert not is_deadlock(snapshots, [0])


def test_is_deadlock_needs_an_answer_from_everybody():
    """
    A deadlock needs an answer from each rank: without one it is not known whether its other threads
    are active.
    """
    snapshots = {0: reducing(), 1: finished()}
    assert is_deadlock(snapshots, [0])
    assert not is_deadlock({**snapshots, 1: None}, [0])
    assert not is_deadlock({**snapshots, 0: replace(reducing(), helpers=None)}, [0])


def test_store_wait_is_a_deadlock_once_nobody_can_set_the_key():
    """
    A wait for a store's key is a deadlock once no rank can set the key. Ranks that wait for the
    waiting rank are reported too.
    """
    snapshots = {0: ON_A_KEY, 1: ON_A_KEY}
    assert is_deadlock(snapshots, [0, 1])
    assert diagnose(snapshots, [0, 1]).sentence == (
        "ranks 0 and 1 all wait for a store's key (line 7), and none sets it"
    )
    snapshots[1] = replace(snapshots[1], helpers=["thread"])
    assert not is_deadlock(snapshots, [0, 1])
    assert diagnose(snapshots, [0, 1]).sentence == (
        "ranks 0 and 1 all wait for a store's key (line 7), and none sets it yet; "
        "rank 1 has a thread that may still act"
    )
    snapshots[1] = reducing(groups={"0": [0, 1]})
    assert diagnose(snapshots, [0, 1]).sentence == (
        "rank 0 is waiting for a store's key at line 7: store.wait(['k']); "
        "rank 1 waits for it in all_reduce 1 (line 2)"
    )
    assert is_deadlock(snapshots, [0, 1])
    snapshots[1] = at(3, "load()")
    assert not is_deadlock(snapshots, [0, 1])
    assert not is_deadlock({0: replace(ON_A_KEY, timeout_s=3.0)}, [0])


def test_message_of_another_tag_is_never_met():
    """
    A send and a recv with different tags never meet, so both wait for ever.
    """
    snapshots = {0: replace(sending(1), tag=1), 1: replace(receiving(0), tag=2)}
    assert is_deadlock(snapshots, [0, 1])
    snapshots[1] = replace(snapshots[1], tag=1)
    assert not is_deadlock(snapshots, [0, 1])


def test_handle_of_a_message_is_told_from_that_of_a_collective():
    """
    A wait for a message's handle differs from one for a collective's. After a collective in the
    same cell, a wait for an irecv was once taken for the collective.
    """
    waiting = replace(at(4, "handle.wait()", "wait", [call("all_reduce", 1)]), operation="recv")
    snapshots = dict.fromkeys(range(2), waiting)
    assert is_deadlock(snapshots, [0, 1])
    assert diagnose(snapshots, [0, 1]).sentence == (
        "ranks 0 and 1 all wait in recv (line 4), and none sends"
    )
    assert "irecv in wait" in diagnose(snapshots, [0, 1]).table
    snapshots[1] = replace(snapshots[1], operation="send")  # rank 0 may receive it
    assert not is_deadlock(snapshots, [0, 1])


def test_rank_outside_that_is_busy_may_come():
    """
    A busy rank outside the cell may still come: two cells on two halves of the ranks may each wait
    for the other half.
    """
    busy = replace(at(None, ""), outside=True)
    snapshots = {0: reducing(groups={"0": [0, 1]}), 1: busy}
    assert not is_deadlock(snapshots, [0, 1])
    snapshots[1] = replace(reducing(groups={"0": [0, 1]}), outside=True)
    assert not is_deadlock(snapshots, [0, 1])


def joining(count="", timeout_s=3.0):
    """
    Return the snapshot of a rank that joins the group of all four ranks.
    """
    code, call = "dist.init_process_group('gloo')", "init_process_group"
    snapshot = at(3, code, call, groups={}, timeout_s=timeout_s)
    forming = FormingGroup("", [0, 1, 2, 3], count)
    return replace(snapshot, forming=forming, function="_create_c10d_store")


def test_is_deadlock_ends_a_join_without_a_rank_that_has_finished():
    """
    A join without a rank that has finished the cell is a deadlock. torch's own limit does not apply
    while a rank looks for a store that never opens.
    """
    snapshots = {0: finished(groups={}), 1: joining(), 2: joining(), 3: joining()}
    assert is_deadlock(snapshots, [1, 2, 3])
    assert diagnose(snapshots, [1, 2, 3]).sentence == (
        "rank 0 finished the cell without init_process_group; ranks 1-3 wait in "
        "init_process_group (line 3)"
    )
    waits_for_a_key = replace(joining(), function="_new_process_group_helper")  # its limit applies
    assert not is_deadlock({0: finished(groups={}), 1: waits_for_a_key}, [1])
    snapshots[0] = finished()  # it has joined already
    assert not is_deadlock(snapshots, [1, 2, 3])


def test_is_deadlock_ends_a_join_that_ranks_count_differently():
    """
    Ranks that count their joins differently never meet: a rank whose earlier join failed does not
    know that the failed join counts.
    """
    snapshots = {0: joining("0"), 1: joining("0"), 2: joining("1"), 3: joining("0")}
    assert is_deadlock(snapshots, [0, 1, 2, 3])
    found = diagnose(snapshots, [0, 1, 2, 3])
    assert found.sentence == (
        "rank 2 joins as group 1, where ranks 0, 1 and 3 join as group 0: an init_process_group "
        "that failed counts too, and ranks meet only under the same number"
    )
    assert found.culprits == (2,)
    pairs = {r: replace(joining(), forming=FormingGroup("", [0, 1], str(r // 2))) for r in range(4)}
    assert not is_deadlock(pairs, [0, 1, 2, 3])  # two worlds of two ranks


def test_is_deadlock_ends_a_join_five_seconds_after_its_own_limit():
    """
    A join of all four ranks that do not meet is ended five seconds after its own limit: another
    program holds the port, or the address is wrong.
    """
    snapshots = {rank: joining() for rank in range(4)}
    assert not is_deadlock(snapshots, [0, 1, 2, 3], still_s=7.9)
    assert is_deadlock(snapshots, [0, 1, 2, 3], still_s=8.1)
    assert not is_deadlock({r: joining(timeout_s=1800.0) for r in range(4)}, [0, 1, 2, 3], 1000.0)
    assert diagnose(snapshots, [0, 1, 2, 3]).sentence == (
        "ranks 0-3 wait in init_process_group (line 3) and have not met all others: check the "
        "address, the port and the world size"
    )


def test_short_joins_are_those_that_their_own_limit_soon_ends():
    """
    Only joins with a short limit of their own are waited for, and not one with half an hour.
    """
    snapshots = {0: joining(), 1: joining(timeout_s=1800.0), 2: joining(timeout_s=None), 3: None}
    assert short_joins({**snapshots, 4: reducing(timeout_s=3.0)}) == {0: 5.0}
