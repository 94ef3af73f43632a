"""
Conclusions from how a cell ended on each rank: the error, and what the kernel must do.
"""

import pytest
from fake_snapshots import at, call, finished

from ddp_lessons.errors import CellStopped, RankDied, RankRaised
from ddp_lessons.ranks.diagnosis.conclusion import Evidence, conclude
from ddp_lessons.ranks.diagnosis.wait_graph import Diagnosis
from ddp_lessons.ranks.messages.outcome import DIED, GIVEN_UP, OK, RAISED, RELEASED, Outcome

DEADLOCK = Diagnosis("rank 1 finished the cell without barrier 1", (1,), {0: (1,)}, "table")


def outcomes(*kinds, **fields):
    """
    Return {rank: Outcome} with one kind for each rank. Outcomes of ranks that raised have the
    fields.
    """
    error = {"ename": "ValueError", "evalue": "bad", "line": 3, "code": "f()", **fields}
    return {r: Outcome(k, **(error if k == RAISED else {})) for r, k in enumerate(kinds)}


def snapshot(*numbers):
    """
    Return the snapshot of a rank that has finished, after some collectives of the default group.
    """
    collectives = [call("all_reduce", number) for number in numbers]
    return finished(collectives, groups={"0": [0, 1]})


def test_a_cell_that_went_well_asks_nothing_of_anybody():
    """
    After a cell without errors nothing is in doubt, so the normal case needs no request to any
    rank.
    """
    evidence = Evidence(outcomes(OK, OK))
    assert not evidence.needs_snapshots
    conclusion = conclude(evidence)
    assert (conclusion.error, conclusion.must_regroup, conclusion.notice) == (None, False, "")


def test_ranks_that_a_view_left_stuck_are_regrouped_without_an_error():
    """
    Ranks that were released from an older call are regrouped, but the cell is no error, because it
    finished itself.
    """
    evidence = Evidence(outcomes(OK, OK), was_released=True)
    assert not evidence.needs_snapshots
    conclusion = conclude(evidence)
    assert conclusion.error is None
    assert conclusion.must_regroup
    assert "from before this cell" in conclusion.notice


def test_unequal_digests_alone_are_no_error():
    """
    Different digests of the collectives alone are no error, because ranks of subgroups may call
    different collectives.
    """
    cell = {0: Outcome(OK), 1: Outcome(OK, digest="other")}
    assert Evidence(cell).needs_snapshots
    evidence = Evidence(cell, snapshots={0: snapshot(1), 1: snapshot(1)})
    assert conclude(evidence).error is None


def test_ranks_that_all_raised_alike_keep_their_group():
    """
    Ranks that all raised after the same collectives keep their group, so that a typing error does
    not cost the learner a DDP model.
    """
    evidence = Evidence(outcomes(RAISED, RAISED), snapshots={0: snapshot(1), 1: snapshot(1)})
    conclusion = conclude(evidence)
    assert conclusion.error is RankRaised
    assert not conclusion.must_regroup
    message = str(conclusion.with_message([]))
    assert message == "ranks 0 and 1 raised ValueError: bad at line 3: f()"


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(outcomes(RAISED, RAISED), snapshots={0: snapshot(1), 1: snapshot(1, 2)}),
        Evidence(
            outcomes(RAISED, RAISED),
            was_released=True,
            snapshots={0: snapshot(1), 1: snapshot(1)},
        ),
        Evidence(outcomes(RAISED, RELEASED), snapshots={0: snapshot(1), 1: snapshot(1)}),
    ],
)
def test_a_group_in_disorder_is_left(evidence):
    """
    A group whose ranks made different calls, or were released, is left, because its next collective
    would pair calls that do not belong together.
    """
    assert conclude(evidence).must_regroup


@pytest.mark.parametrize(
    ("evidence", "error", "head"),
    [
        (
            Evidence(outcomes(RAISED, RELEASED), was_stopped=True, diagnosis=DEADLOCK),
            CellStopped,
            "rank 0 raised ValueError: bad",
        ),
        (
            Evidence(outcomes(RELEASED, OK), was_stopped=True, diagnosis=DEADLOCK),
            CellStopped,
            "Stopped: rank 1 finished the cell",
        ),
        (
            Evidence(
                outcomes(RELEASED, RELEASED),
                was_stopped=True,
                last_snapshots={0: at(2, "spin()"), 1: None},
            ),
            CellStopped,
            "Stopped: rank 0 was at line 2: spin()",
        ),
        (
            Evidence(outcomes(RELEASED, OK), was_deadlocked=True, diagnosis=DEADLOCK),
            RankRaised,
            "Deadlock: rank 1 finished the cell without barrier 1.\ntable",
        ),
        (Evidence(outcomes(DIED, RAISED)), RankDied, "rank 0 died: its process has ended"),
        (Evidence(outcomes(RAISED, GIVEN_UP)), RankRaised, "rank 0 raised ValueError: bad"),
        (Evidence(outcomes(OK, GIVEN_UP)), RankDied, "rank 1 could not be"),
    ],
)
def test_the_cause_is_named_before_its_consequences(evidence, error, head):
    """
    The message begins with the cause: a Stop comes before a deadlock, then a death, then an error,
    then a rank that could not be released.
    """
    conclusion = conclude(evidence)
    assert conclusion.error is error
    message = str(conclusion.with_message(["done."]))
    assert message.startswith(head)
    assert message.endswith("done.")


LOST_PEER = "Connection closed by peer"


@pytest.mark.parametrize(
    ("evalue", "groups", "head"),
    [
        (LOST_PEER, {}, "rank 1 finished the cell and is in no process group"),
        (LOST_PEER, {"0": [0, 1]}, "rank 0 raised ValueError: Connection closed by peer"),
        ("bad", {}, "rank 0 raised ValueError: bad"),
    ],
)
def test_a_rank_that_left_its_group_is_named_before_those_that_lost_it(evalue, groups, head):
    """
    The culprit of a lost connection is the rank that left its group, not the ranks that raised.
    A rank that is still in a group, or an error of another kind, is no such case.
    """
    snapshots = {0: snapshot(1), 1: finished(groups=groups)}
    conclusion = conclude(Evidence(outcomes(RAISED, OK, evalue=evalue), snapshots=snapshots))
    assert conclusion.error is RankRaised
    assert conclusion.must_regroup
    message = str(conclusion.with_message([]))
    assert message.startswith(head)
    assert f"rank 0 raised ValueError: {evalue} at line 3: f()" in message


def test_replacement_waits_for_the_next_cell_if_a_host_is_lost():
    """
    The replacement of a rank waits for the next cell if its host is lost, because a launcher may
    need long for that, and the prompt must return.
    """
    assert conclude(Evidence(outcomes(DIED, OK), lost_hosts=("node2",))).is_postponed
    assert not conclude(Evidence(outcomes(DIED, OK))).is_postponed


def test_a_released_rank_that_was_replaced_is_given_up():
    """
    A released rank that was replaced counts as given up: its variables are lost, so no message may
    say that they are kept.
    """
    cell = outcomes(RAISED, RELEASED, OK)
    conclusion = conclude(Evidence(cell)).with_given_up([1, 2])
    kinds = [outcome.kind for outcome in conclusion.evidence.outcomes.values()]
    assert kinds == [RAISED, GIVEN_UP, OK]
    assert cell == outcomes(RAISED, RELEASED, OK)
    message = str(conclusion.with_message([]))
    assert message.startswith("rank 0 raised")
    assert "variables are kept" not in message


def test_a_name_that_only_the_notebook_knows_is_explained():
    """
    The hint follows from the evidence alone: a conclusion does not look into a live notebook.
    """
    cell = outcomes(RAISED, OK, evalue="name 'model' is not defined")
    known = conclude(Evidence(cell, known_names=frozenset({"model"})))
    assert "`model` lives in the notebook" in str(known.with_message([]))
    assert "lives" not in str(conclude(Evidence(cell)).with_message([]))
