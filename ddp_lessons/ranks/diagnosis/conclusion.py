"""
The conclusion of a cell: from what was seen of it to one error, or none. Pure: the kernel acts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddp_lessons.errors import CellFailed, CellStopped, RankDied, RankRaised, RanksGone
from ddp_lessons.ranks.diagnosis import cell_report
from ddp_lessons.ranks.diagnosis.wait_graph import Diagnosis, diagnose
from ddp_lessons.ranks.diagnosis.wording import rank_names
from ddp_lessons.ranks.diagnosis.wrong_side_hints import hints_on_ranks
from ddp_lessons.ranks.messages.outcome import DIED, GIVEN_UP, OK, RAISED, RELEASED, Outcome
from ddp_lessons.ranks.rank.tracebacks import comes_of_a_lost_peer

if TYPE_CHECKING:
    from ddp_lessons.ranks.messages.snapshot import RankSnapshot, Snapshots


@dataclass(frozen=True)
class Evidence:
    """
    The evidence about a cell that has ended on every rank.

    Args:
        outcomes: For each rank of the cell its Outcome.
        was_stopped: Whether Stop was pressed.
        was_deadlocked: Whether the stall monitor found a deadlock.
        was_released: Whether the stall monitor has released ranks.
        diagnosis: The Diagnosis that the stall monitor made before it released ranks, or None.
        last_snapshots: For each rank that was asked while the cell ran, its last snapshot.
        snapshots: For each rank of the cell its snapshot after the cell, or None. Needed only if
            `needs_snapshots` says so.
        known_names: Names that the notebook defines. Needed only if `needs_snapshots` says so.
        lost_hosts: Names of hosts on which no rank is left.
    """

    outcomes: dict[int, Outcome]
    was_stopped: bool = False
    was_deadlocked: bool = False
    was_released: bool = False
    diagnosis: Diagnosis | None = None
    last_snapshots: dict[int, RankSnapshot] = field(default_factory=dict)
    snapshots: Snapshots = field(default_factory=dict)
    known_names: frozenset[str] = frozenset()
    lost_hosts: tuple[str, ...] = ()

    @property
    def outcome_kinds(self) -> set[str]:
        """
        The kinds of the outcomes.
        """
        return {outcome.kind for outcome in self.outcomes.values()}

    @property
    def all_finished(self) -> bool:
        """
        Whether every rank has finished the cell, and Stop was not pressed.
        """
        return self.outcome_kinds == {OK} and not self.was_stopped

    @property
    def needs_snapshots(self) -> bool:
        """
        Whether `snapshots` and `known_names` must be filled in, before anything can be concluded.
        """
        are_alike = len({outcome.digest for outcome in self.outcomes.values()}) == 1
        return not self.all_finished or not (are_alike or self.was_released)


@dataclass(frozen=True)
class Conclusion:
    """
    The fault of a cell, if there is one, and the steps that the kernel has to take.

    Args:
        error: The class of the error to raise; None: the cell went well.
        evidence: The Evidence that it rests on.
        outcome_kinds: The kinds of the outcomes, before the kernel has done anything.
        desync: The sentence about ranks that have made different calls; "" if there are none.
        must_regroup: Whether all ranks must leave their groups and join a new one.
        is_postponed: Whether dead ranks are replaced when the next cell begins, and not now.
        notice: A sentence to print; "" if there is none.
    """

    error: type[CellFailed] | None
    evidence: Evidence
    outcome_kinds: frozenset[str]
    desync: str = ""
    must_regroup: bool = False
    is_postponed: bool = False
    notice: str = ""

    def with_given_up(self, replaced: list[int]) -> Conclusion:
        """
        Return this conclusion after a recovery: ranks that were released and yet had to be replaced
        count as given up.

        Args:
            replaced: The ranks that were replaced.
        """
        outcomes = {
            rank: replace(outcome, kind=GIVEN_UP)
            if rank in replaced and outcome.kind == RELEASED
            else outcome
            for rank, outcome in self.evidence.outcomes.items()
        }
        return replace(self, evidence=replace(self.evidence, outcomes=outcomes))

    def with_message(self, done: list[str]) -> CellFailed:
        """
        Return the error to raise.

        Args:
            done: Lines about what the kernel has done since, such as which ranks it has replaced.
        """
        assert self.error is not None
        outcomes = self.evidence.outcomes
        head, traceback = self._head_and_traceback()
        given_up = cell_report.given_up_message(outcomes)
        # A desync may have caused a death: Gloo aborts a process that gets more than it expects.
        is_cause = self.desync and DIED in self.outcome_kinds and not self.evidence.was_stopped
        cause = f"Before that, {self.desync}." if is_cause else ""
        lines = [head, cause, "" if given_up == head else given_up]
        lines += hints_on_ranks(outcomes, self.evidence.known_names)
        lines += [cell_report.released_sentence(outcomes), *done]
        return self.error("\n".join(line for line in lines if line), traceback)

    def _head_and_traceback(self) -> tuple[str, list[str] | tuple[()]]:
        evidence, outcomes = self.evidence, self.evidence.outcomes
        if evidence.was_stopped:
            return _stop_head(evidence), ()
        if evidence.was_deadlocked:
            assert evidence.diagnosis is not None
            return f"Deadlock: {evidence.diagnosis.sentence}.\n{evidence.diagnosis.table}", ()
        if DIED in self.outcome_kinds:
            return cell_report.died_message(outcomes), ()
        if RAISED in self.outcome_kinds:
            message, traceback = cell_report.raised_message(outcomes)
            cause = _left_sentence(evidence)
            return f"{cause}\n{message}" if cause else message, traceback
        if GIVEN_UP in self.outcome_kinds:
            return cell_report.given_up_message(outcomes), ()
        return f"{self.desync}. What came out is not to be trusted.", ()


def conclude(evidence: Evidence) -> Conclusion:
    """
    Return the Conclusion of a cell that has ended on every rank.
    """
    kinds = frozenset(evidence.outcome_kinds)
    if evidence.all_finished and evidence.was_released:
        notice = "Ranks were stuck in a call from before this cell, and were released."
        return Conclusion(None, evidence, kinds, must_regroup=True, notice=notice)
    if not evidence.needs_snapshots:
        return Conclusion(None, evidence, kinds)
    desync = diagnose(evidence.snapshots, []).sentence
    if evidence.all_finished and not desync:
        return Conclusion(None, evidence, kinds)
    # If all ranks raised by themselves after the same collectives, their group is still usable.
    group_is_usable = kinds == {RAISED} and not desync and _same_collectives(evidence.snapshots)
    return Conclusion(
        _class_of_error(evidence),
        evidence,
        kinds,
        desync,
        must_regroup=not group_is_usable or evidence.was_released,
        is_postponed=bool(evidence.lost_hosts),
    )


def _class_of_error(evidence: Evidence) -> type[CellFailed]:
    if evidence.was_stopped:
        return CellStopped
    if not evidence.was_deadlocked and DIED in evidence.outcome_kinds:
        return RankDied
    is_given_up = GIVEN_UP in evidence.outcome_kinds and RAISED not in evidence.outcome_kinds
    return RankDied if is_given_up and not evidence.was_deadlocked else RankRaised


def _same_collectives(snapshots: Snapshots) -> bool:
    called = {
        str([collective.key for collective in snapshot.collectives])
        for snapshot in snapshots.values()
        if snapshot is not None
    }
    return len(called) <= 1


def _left_sentence(evidence: Evidence) -> str:
    """
    Return one sentence about ranks that have finished the cell in no group, if every error is that
    of a lost peer; else "".
    """
    raised = [outcome for outcome in evidence.outcomes.values() if outcome.kind == RAISED]
    if not all(comes_of_a_lost_peer(outcome.evalue) for outcome in raised):
        return ""
    left = []
    for rank, outcome in evidence.outcomes.items():
        snapshot = evidence.snapshots.get(rank)
        if outcome.kind == OK and snapshot is not None and not snapshot.groups:
            left.append(rank)
    if not left:
        return ""
    is_or_are = "is" if len(left) == 1 else "are"
    return (
        f"{rank_names(left)} finished the cell and {is_or_are} in no process group, such as after "
        "destroy_process_group: other ranks lost the connection."
    )


def _stop_head(evidence: Evidence) -> str:
    if any(outcome.kind == RAISED for outcome in evidence.outcomes.values()):
        return cell_report.raised_message(evidence.outcomes)[0]
    if evidence.diagnosis is not None and evidence.diagnosis.sentence:
        return f"Stopped: {evidence.diagnosis.sentence}."
    at: dict[tuple[int, str], list[int]] = {}
    for rank, snapshot in evidence.last_snapshots.items():
        if snapshot and snapshot.line:
            at.setdefault((snapshot.line, snapshot.code), []).append(rank)
    parts = [
        f"{rank_names(ranks)} {'was' if len(ranks) == 1 else 'were'} at line {line}: {code}"
        for (line, code), ranks in at.items()
    ]
    return f"Stopped: {'; '.join(parts) or f'{rank_names(evidence.outcomes)} did not answer'}."


def deaths_message(deaths: dict[int, Outcome], done: list[str]) -> RankDied:
    """
    Return the error for ranks that have died between two cells.

    Args:
        deaths: For each of these ranks its Outcome.
        done: Lines about what the kernel has done since.
    """
    lines = [
        cell_report.died_message(deaths),
        *done,
        "This cell was not run: run the cells that this rank needs, then this one again.",
    ]
    return RankDied("\n".join(lines))


def postponed_sentence(dead: list[int], lost_hosts: list[str]) -> str:
    """
    Return the sentence about dead ranks whose replacement waits for the next cell.
    """
    return (
        f"No rank on {' and '.join(lost_hosts)} is left. The next cell begins with new processes "
        f"for {rank_names(dead)}, there or on another host, and a new group."
    )


def gone_error(parked_after_min: float | None, loss: str) -> RanksGone:
    """
    Return the error for ranks that cannot run a cell any more.

    Args:
        parked_after_min: Minutes without a cell after which they were parked; None: they were not.
        loss: Words for what has ended all ranks (see `RankProcesses.loss`), or "".
    """
    if parked_after_min is not None:
        return RanksGone(
            "The ranks were parked: they end, and their variables with them, when no cell is run "
            f"for {parked_after_min:g} min. Run start_ranks() again, then the cells that you "
            "need."
        )
    if loss:
        return RanksGone(lost_message(loss))
    return RanksGone("The ranks are gone: stopped, or ended from outside. Run start_ranks() again.")


def lost_message(loss: str) -> str:
    """
    Return the message that says what has ended all ranks.

    Args:
        loss: Words for the cause (see `RankProcesses.loss`).
    """
    return (
        f"The ranks are gone, and their variables with them: {loss}. Run start_ranks() again, then "
        "the cells that you need."
    )
