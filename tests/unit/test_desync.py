"""
Desyncs in which the calls look alike: different roots, and different groups of one name.
"""

from dataclasses import replace

import pytest
from fake_snapshots import at, call, finished, reducing

from ddp_lessons.ranks.diagnosis.wait_graph import diagnose, is_deadlock
from ddp_lessons.ranks.messages.snapshot import FormingGroup


def rooted(root, name="broadcast", number=1, line=2):
    """
    Return the snapshot of a rank in a collective that has a root.
    """
    snapshot = at(line, f"dist.{name}(t, root)", name, [call(name, number)])
    return replace(snapshot, root=root)


def forming(name, ranks, groups=None, waiting_in="new_group"):
    """
    Return the snapshot of a rank that makes a group.
    """
    snapshot = at(2, "pair = dist.new_group(some)", waiting_in, groups=groups)
    return replace(snapshot, forming=FormingGroup(name, ranks))


def test_diagnose_names_a_root_of_its_own():
    """
    The diagnosis names the rank with another root. The calls agree in name, size and dtype, so only
    the root shows the culprit.
    """
    snapshots = {0: rooted(0), 1: rooted(0), 2: rooted(2), 3: rooted(0)}
    found = diagnose(snapshots, [0, 1, 2, 3])
    assert found.sentence == (
        "rank 2 called broadcast float[4] from rank 2 as collective 1, "
        "where ranks 0, 1 and 3 called broadcast float[4] from rank 0"
    )
    assert found.culprits == (2,)
    assert found.waits_for == {0: (2,), 1: (2,), 2: (0, 1, 3), 3: (2,)}
    assert is_deadlock(snapshots, [0, 1, 2, 3])


def test_diagnose_says_in_short_that_each_is_its_own_root():
    """
    Ranks that each pass themselves as the root (`src=rank`, a common mistake) are reported in one
    clause, not in eight.
    """
    snapshots = {rank: rooted(rank, "reduce") for rank in range(8)}
    found = diagnose(snapshots, list(range(8)))
    assert found.sentence == "ranks 0-7 called reduce float[4] as collective 1, each to itself"
    assert is_deadlock(snapshots, list(range(8)))


def test_diagnose_takes_a_finished_root_for_a_witness():
    """
    A root that has finished counts as a vote for itself. Rank 1 is the root of rank 2 and has
    finished, so rank 0 is the culprit.
    """
    done = finished([call("broadcast", 1)])
    snapshots = {0: rooted(0), 1: done, 2: rooted(1), 3: done}
    assert diagnose(snapshots, [0, 2]).culprits == (0,)


def test_is_deadlock_lets_a_collective_of_one_root_go_on():
    """
    Ranks in a collective with the same root are no deadlock, because a broadcast of a gigabyte
    takes its time.
    """
    snapshots = {0: rooted(1), 1: rooted(1), 2: rooted(1)}
    assert diagnose(snapshots, [0, 1, 2]).sentence.startswith("rank 0 waits in broadcast 1; ")
    assert not is_deadlock(snapshots, [0, 1, 2])
    snapshots[2] = rooted(0, number=2)  # the next broadcast may have another root
    assert "from" not in diagnose(snapshots, [0, 1, 2]).sentence


def test_diagnose_names_groups_that_clash():
    """
    The diagnosis names groups that clash: half of the ranks made another group first, so torch gave
    two groups one name.
    """
    world = {"0": [0, 1, 2, 3]}
    made = {**world, "1": [0, 1]}
    snapshots = {
        0: finished(groups=made),
        1: finished(groups=made),
        2: forming("1", [2, 3], world),
        3: finished(groups={**world, "1": [0, 1]}),
    }
    found = diagnose(snapshots, [2])
    assert found.sentence == (
        "group 1 consists of ranks 2 and 3 on rank 2, but of ranks 0 and 1 on ranks 0, 1 and 3: "
        "each rank numbers the groups that it creates, so every rank must create every group, in "
        "the same order"
    )
    assert found.waits_for == {2: (3,)}
    assert is_deadlock(snapshots, [2])


@pytest.mark.parametrize("waiting_in", ["new_group", "init_process_group"])
def test_is_deadlock_lets_a_group_form(waiting_in):
    """
    A group that all members make is no deadlock, because connecting takes a while on a busy
    machine. A cell was once ended for that.
    """
    snapshots = {rank: forming("1", [0, 1], waiting_in=waiting_in) for rank in (0, 1)}
    assert not is_deadlock(snapshots, [0, 1])
    snapshots[1] = finished(groups={"1": [0, 1]})  # it was faster
    assert not is_deadlock(snapshots, [0])


def test_diagnose_waits_for_the_members_of_a_new_group_only():
    """
    Only members of a new group can be missing, because the other ranks pass at once.
    """
    snapshots = {0: forming("1", [0, 1]), 1: finished(), 2: finished(), 3: finished()}
    found = diagnose(snapshots, [0])
    assert found.sentence == (
        "rank 1 finished the cell without new_group; rank 0 waits in new_group (line 2)"
    )
    assert is_deadlock(snapshots, [0])


def test_diagnose_names_a_rank_that_there_is_not():
    """
    The diagnosis names a rank that does not exist: with a world size that is too large, all ranks
    wait for it.
    """
    snapshots = {r: forming("", [0, 1, 2], waiting_in="init_process_group") for r in (0, 1)}
    found = diagnose(snapshots, [0, 1])
    assert found.sentence == (
        "there is no rank 2; ranks 0 and 1 wait for it in init_process_group (line 2)"
    )
    assert is_deadlock(snapshots, [0, 1])


def test_diagnose_names_ranks_that_were_not_asked():
    """
    The diagnosis names ranks that were not asked to run the cell: with `%%px --targets 0,1` and a
    collective of all, they never come.
    """
    idle = replace(finished(), outside=True)
    snapshots = {0: reducing(), 1: reducing(), 2: idle, 3: idle}
    found = diagnose(snapshots, [0, 1])
    assert found.sentence == (
        "ranks 2 and 3 were not asked to run this cell; "
        "ranks 0 and 1 wait for them in all_reduce 1 (line 2)"
    )
    assert found.culprits == (2, 3)
    assert found.table.splitlines()[3].split("  ")[0] == "2"
    assert "not in this cell" in found.table
    assert is_deadlock(snapshots, [0, 1])


def test_table_leaves_out_who_was_not_asked_and_is_not_awaited():
    """
    The table leaves out ranks that are not in the cell and not waited for, so that a cell for one
    of eight ranks shows one row.
    """
    idle = replace(finished(), outside=True)
    snapshots = {0: at(1, "time.sleep(9)"), **dict.fromkeys(range(1, 8), idle)}
    assert len(diagnose(snapshots, [0]).table.splitlines()) == 2
