"""
The wait graph of made-up snapshots: which rank waits for which, and who the culprit is. A wrong
name would mislead a learner.
"""

from dataclasses import replace

import pytest
from fake_snapshots import at, call, finished, receiving, reducing, sending

from ddp_lessons.ranks.diagnosis.wait_graph import diagnose, is_communicating, is_deadlock
from ddp_lessons.ranks.diagnosis.wording import rank_names

PAIR = {"0": [0, 1, 2, 3], "pair": [0, 2]}
SLEEPING = at(3, "time.sleep(60)")


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([2], "rank 2"),
        ([1, 0], "ranks 0 and 1"),
        ([3, 5], "ranks 3 and 5"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ([3, 0, 2, 1], "ranks 0-3"),
        ({5, 6, 7}, "ranks 5-7"),
    ],
)
def test_rank_names_reads_as_words(ranks, words):
    """
    Rank names are the same text for the same ranks, whatever their order.
    """
    assert rank_names(ranks) == words


def test_diagnose_names_the_rank_that_finished():
    """
    The rank that finished without the collective is the culprit. The table is compared exactly,
    because nbval compares it in a lesson.
    """
    calls = [call("all_reduce", 1), call("all_reduce", 2)]
    snapshots = {0: reducing(3), 1: reducing(3), 2: finished(calls), 3: reducing(3)}
    found = diagnose(snapshots, [0, 1, 3])
    assert found.sentence == (
        "rank 2 finished the cell without all_reduce 3; "
        "ranks 0, 1 and 3 wait in all_reduce 3 (line 2)"
    )
    assert found.culprits == (2,)
    assert found.waits_for == {0: (2,), 1: (2,), 3: (2,)}
    assert found.table == "\n".join(
        [
            "rank  line                   in                  waits for",
            "0     2: dist.all_reduce(t)  all_reduce 3        2",
            "1     2: dist.all_reduce(t)  all_reduce 3        2",
            "2     finished               last: all_reduce 2  -",
            "3     2: dist.all_reduce(t)  all_reduce 3        2",
        ]
    )
    assert is_deadlock(snapshots, [0, 1, 3])


def test_the_table_names_the_line_of_a_module_that_the_cell_calls():
    """
    The table names the line of a module that the cell calls, because in a module of their own
    learners look for the call there.
    """
    snapshots = {0: replace(reducing(1), module="helpers.py:4"), 1: finished([])}
    row = diagnose(snapshots, [0]).table.splitlines()[1]
    assert row == "0     2: dist.all_reduce(t)  all_reduce 1 at helpers.py:4  1"


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        (call("broadcast", 1), "broadcast float[4]"),
        (call("all_reduce", 1, size=(3,)), "all_reduce float[3]"),
        (call("all_reduce", 1, size=(2, 3)), "all_reduce float[2, 3]"),
        (call("all_reduce", 1, dtype="Int"), "all_reduce int[4]"),
    ],
)
def test_diagnose_names_the_odd_one_out(odd, what):
    """
    A rank with another name, shape or dtype is the culprit. The smaller side is the culprit, and
    both calls are shown.
    """
    snapshots = {rank: reducing() for rank in (0, 1, 3)}
    snapshots[2] = at(4, "dist.call(t)", odd.name, [odd])
    found = diagnose(snapshots, [0, 1, 2, 3])
    assert found.sentence == (
        f"rank 2 called {what} as collective 1, where ranks 0, 1 and 3 called all_reduce float[4]"
    )
    assert found.culprits == (2,)
    assert found.waits_for == {0: (2,), 1: (2,), 2: (0, 1, 3), 3: (2,)}
    assert is_deadlock(snapshots, [0, 1, 2, 3])


def test_diagnose_tells_the_first_mismatch():
    """
    Only the first desync is reported, because one wrong call shifts all later ones.
    """
    right = [call("all_reduce", 1), call("broadcast", 2), call("all_reduce", 3)]
    wrong = [call("all_reduce", 1), call("all_reduce", 2), call("barrier", 3, size=())]
    found = diagnose({0: finished(right), 1: finished(wrong), 2: finished(right)}, [])
    assert found.sentence.startswith("rank 1 called all_reduce float[4] as collective 2, where ")


def test_diagnose_allows_what_may_differ():
    """
    Differences that are allowed are not reported: gathers of objects have different sizes, and
    subgroups count separately.
    """
    groups = {"0": [0, 1], "a": [0], "b": [1]}
    snapshots = {
        0: finished([call("gather", 1, size=(7,)), call("broadcast", 1, group="a")], groups),
        1: finished([call("gather", 1, size=(9,)), call("all_reduce", 1, group="b")], groups),
    }
    assert diagnose(snapshots, []).sentence == ""


@pytest.mark.parametrize(
    ("waiting", "name", "never"), [(receiving, "recv", "sends"), (sending, "send", "receives")]
)
def test_diagnose_sees_that_nobody_begins(waiting, name, never):
    """
    If all ranks receive first, or all send a large message first, none begins: the diagnosis says
    so.
    """
    snapshots = {rank: waiting((rank + 1) % 4) for rank in range(4)}
    found = diagnose(snapshots, [0, 1, 2, 3])
    assert found.sentence == f"ranks 0-3 all wait in {name} (line 1), and none {never}"
    assert found.waits_for == {0: (1,), 1: (2,), 2: (3,), 3: (0,)}
    assert is_deadlock(snapshots, [0, 1, 2, 3])


def test_diagnose_tells_a_circle():
    """
    In a circle of waits both ranks are shown, because each waits for the other and neither is the
    culprit.
    """
    snapshots = {0: receiving(1), 1: reducing()}
    found = diagnose(snapshots, [0, 1])
    assert found.sentence == (
        "rank 0 waits in recv for rank 1; rank 1 waits in all_reduce 1 for rank 0"
    )
    assert is_deadlock(snapshots, [0, 1])


def test_diagnose_points_at_a_rank_that_is_elsewhere():
    """
    A rank that is elsewhere is named, but it is no deadlock, because that rank may still come.
    """
    snapshots = {0: reducing(), 1: SLEEPING, 2: reducing()}
    found = diagnose(snapshots, [0, 1, 2])
    assert found.sentence == (
        "rank 1 is at line 3: time.sleep(60); ranks 0 and 2 wait for it in all_reduce 1 (line 2)"
    )
    assert found.table.splitlines()[2] == "1     3: time.sleep(60)      no communication  -"
    assert not is_deadlock(snapshots, [0, 1, 2])


def test_diagnose_points_at_several_that_are_elsewhere():
    """
    Several ranks that are elsewhere are each named with their own line.
    """
    snapshots = {0: reducing(), 1: SLEEPING, 2: SLEEPING, 3: at(5, "load()"), 4: None}
    for rank in (0, 1, 2, 3):
        snapshots[rank] = replace(snapshots[rank], groups={"0": [0, 1, 2, 3, 4]})
    assert diagnose(snapshots, [0, 1, 2, 3, 4]).sentence == (
        "ranks 1 and 2 are at line 3: time.sleep(60); rank 3 is at line 5: load(); "
        "rank 4 does not answer; rank 0 waits for them in all_reduce 1 (line 2)"
    )


def test_diagnose_names_a_silent_rank():
    """
    A rank that does not answer is reported as such: C code that holds the interpreter cannot
    answer.
    """
    snapshots = {0: reducing(), 1: None}
    found = diagnose(snapshots, [0, 1])
    assert found.sentence == (
        "rank 1 does not answer; rank 0 waits for it in all_reduce 1 (line 2)"
    )
    assert found.table.splitlines()[2] == "1     ?                      does not answer  ?"
    assert not is_deadlock(snapshots, [0, 1])


def test_diagnose_does_not_invent_a_line():
    """
    A rank between two cells is reported without a line, because "line None" would not help.
    """
    found = diagnose({0: reducing(), 1: finished()}, [0, 1])
    assert found.sentence.startswith("rank 1 is not in the cell; rank 0 waits for it in ")


def test_diagnose_waits_for_members_only():
    """
    Only members of a subgroup are waited for. Other ranks never call its collectives.
    """
    world = [call("all_reduce", 1)]
    inside = [*world, call("all_reduce", 1, group="pair", record=2)]
    snapshots = {
        0: at(4, "dist.all_reduce(t, group=pair)", "all_reduce", inside, groups=PAIR),
        1: finished(world, PAIR),
        2: at(5, "time.sleep(60)", calls=world, groups=PAIR),
        3: finished(world, PAIR),
    }
    found = diagnose(snapshots, [0, 2])
    assert found.waits_for == {0: (2,), 2: ()}
    assert found.culprits == (2,)


@pytest.mark.parametrize("computing_in", ["backward", "DDP forward"])
def test_who_computes_before_the_first_collective_is_in_no_deadlock(computing_in):
    """
    A rank that computes before its first collective is in no deadlock. CPU time of ranks on other
    hosts is unknown, and their peers may wait for long.
    """
    computing = at(2, "loss.backward()", computing_in)
    assert not is_deadlock({0: computing, 1: computing}, [0, 1])
    assert not is_deadlock({0: receiving(1), 1: computing}, [0, 1])
    ahead = at(2, "loss.backward()", computing_in, [call("all_reduce", 1)])
    assert not is_deadlock({0: ahead, 1: computing}, [0, 1])
    assert is_deadlock({0: ahead, 1: finished()}, [0])


@pytest.mark.parametrize("waiting_in", ["backward", "wait", "DDP forward"])
def test_diagnose_names_the_collective_behind_a_call(waiting_in):
    """
    The diagnosis names the collective behind a call: the learner wrote `loss.backward()`, and the
    rank waits in the reducer's all_reduce.
    """
    calls = [call("all_reduce", 1), call("all_reduce", 2)]
    snapshots = {0: at(7, "step()", waiting_in, calls), 1: at(3, "input()", calls=calls[:1])}
    assert diagnose(snapshots, [0, 1]).sentence == (
        "rank 1 is at line 3: input(); "
        f"rank 0 waits for it in all_reduce 2 in {waiting_in} (line 7)"
    )


@pytest.mark.parametrize("forming", ["init_process_group", "new_group"])
def test_diagnose_names_who_does_not_form_the_group(forming):
    """
    Ranks that do not join a new group are named. The group has no number yet, so every rank outside
    the call is awaited.
    """
    waiting = at(3, f"dist.{forming}()", forming, groups={})
    snapshots = {0: waiting, 1: finished(), 2: waiting}
    assert diagnose(snapshots, [0, 2]).sentence == (
        f"rank 1 finished the cell without {forming}; ranks 0 and 2 wait in {forming} (line 3)"
    )
    assert is_deadlock(snapshots, [0, 2])


def test_diagnose_is_silent_about_a_cell_that_computes():
    """
    A cell that only computes gets no sentence, so the stall table is not printed: an hour of
    training is no stall.
    """
    snapshots = {0: at(3, "loss = model(x)"), 1: at(4, "opt.step()", calls=[call("all_reduce", 1)])}
    found = diagnose(snapshots, [0, 1])
    assert (found.sentence, found.culprits) == ("", ())
    assert not any(is_communicating(snapshot) for snapshot in snapshots.values())
    assert not is_deadlock(snapshots, [0, 1])


def test_diagnose_counts_elements_not_shapes():
    """
    The number of elements is compared, not the shape, because torch reduces a [6] with a [2, 3]
    correctly.
    """
    snapshots = {
        0: finished([call("all_reduce", 1, size=(6,))]),
        1: finished([call("all_reduce", 1, size=(2, 3))]),
    }
    assert diagnose(snapshots, []).sentence == ""
    snapshots[1] = finished([call("all_reduce", 1, size=(2, 4))])
    assert "rank 1 called all_reduce float[2, 4]" in diagnose(snapshots, []).sentence


def test_diagnose_says_what_halts_a_rank():
    """
    A halted rank is reported with its cause, and with its line if an earlier snapshot has it,
    because a stopped process cannot answer.
    """
    sleeping = at(3, "time.sleep(60)")
    snapshots = {0: reducing(3), 1: None, 2: sleeping, 3: reducing(3)}
    halts = {1: "stopped by a signal", 2: "waiting for a disk"}
    found = diagnose(snapshots, [0, 1, 2, 3], halts)
    assert found.sentence == (
        "rank 1 is stopped by a signal; rank 2 is waiting for a disk at line 3: time.sleep(60); "
        "ranks 0 and 3 wait for them in all_reduce 3 (line 2)"
    )
    assert found.culprits == (1, 2)
    assert found.table == "\n".join(
        [
            "rank  line                   in                   waits for",
            "0     2: dist.all_reduce(t)  all_reduce 3         1, 2",
            "1     ?                      stopped by a signal  ?",
            "2     3: time.sleep(60)      waiting for a disk   -",
            "3     2: dist.all_reduce(t)  all_reduce 3         1, 2",
        ]
    )


def test_diagnose_names_a_halted_rank_that_nobody_waits_for():
    """
    A halted rank is named even if no rank waits for it, because the cell is stalled. A rank may
    also be halted in a call.
    """
    halts = {1: "stopped by a signal"}
    found = diagnose({0: finished(), 1: reducing(1)}, [1], halts)
    assert found.sentence == "rank 1 is stopped by a signal at line 2: dist.all_reduce(t)"
    assert diagnose({0: finished(), 1: finished()}, [], halts).sentence == ""


def test_diagnose_names_a_halted_rank_that_was_not_asked_to_run_the_cell():
    """
    A halted rank outside the cell is named too. It does not answer, so it is not reported as
    finished.
    """
    snapshots = {0: reducing(1), 1: None, 2: reducing(1)}
    found = diagnose(snapshots, [0, 2], {1: "stopped by a signal"})
    assert found.sentence == (
        "rank 1 is stopped by a signal; ranks 0 and 2 wait for it in all_reduce 1 (line 2)"
    )
    assert "1     ?                      stopped by a signal  ?" in found.table
