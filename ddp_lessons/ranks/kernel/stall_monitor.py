"""
The stall monitor: it watches a cell that has not ended, and tells slow from stuck.

    a rank raised or died      release its peers once they wait, or had a chance to raise, too
    all wait for one another   a deadlock, which never ends by itself: release all ranks
    some wait for a slow rank  a stall: after 5 s print a table of which rank waits for which
    a released rank waits on   end its process, if it had a core and still waits
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddp_lessons.ranks.diagnosis import manual_joins
from ddp_lessons.ranks.diagnosis.stall_detection import StallDetector
from ddp_lessons.ranks.diagnosis.wait_graph import (
    diagnose,
    is_busy_outside,
    is_communicating,
    is_deadlock,
)
from ddp_lessons.ranks.kernel.agent_client import snapshot_from_outside, snapshot_in
from ddp_lessons.ranks.kernel.unblocking import Unblocker
from ddp_lessons.ranks.rank.stack_snapshot import source_line
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout

if TYPE_CHECKING:
    from ddp_lessons.ranks.diagnosis.wait_graph import Diagnosis
    from ddp_lessons.ranks.kernel.ranks import Ranks
    from ddp_lessons.ranks.messages.snapshot import AgentState, RankSnapshot, Snapshots
    from ddp_lessons.ranks.system.thread_stats import ThreadStats


class StallMonitor:
    """
    The watch on the ranks of one cell.

    Args:
        ranks: The Ranks.
        source: The cell's text.
        targets: The ranks that run it.
        clock: Function that returns seconds.
    """

    def __init__(
        self,
        ranks: Ranks,
        source: str,
        targets: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ranks = ranks
        self.source = source
        self.targets = targets
        self._clock = clock
        self.diagnosis: Diagnosis | None = None
        self.deadlocked = False
        self.unblocker: Unblocker | None = None
        self.last_snapshots: dict[int, RankSnapshot] = {}
        # rank -> (when asked, its agent's turns then, future)
        self._questions: dict[int, tuple[float, int, Future[Any]]] = {}
        # rank -> when the request was sent that it answered last
        self._answered_at: dict[int, float] = {}
        self._from_outside: dict[int, RankSnapshot] = {}
        self._standstill: StallDetector | None = None
        self._stats_at_fault: dict[int, ThreadStats | None] | None = None
        self._table_shown = False

    def look(self, running: list[int], fault_at: float | None) -> None:
        """
        Look at the ranks once, and do what is due. Call this every `STALL_LOOK_EVERY_S` seconds.

        Args:
            running: Ranks that have not finished.
            fault_at: Time at which the first rank raised or died, by the monotonic clock; or None.
        """
        if self.unblocker is not None:
            lost = self.unblocker.step(running)
            if lost:
                for rank in set(lost) - set(self.last_snapshots):  # read its stack before it ends
                    self._ask_from_outside(rank, may_interrupt_sleep=True)
                self.ranks.engines.kill_stuck(lost)
            return
        if self._standstill is None:  # made late: most cells end before the first look
            self._standstill = self._make_detector()
        self._standstill.look(running)
        if fault_at is not None:
            self._look_after_fault(running, fault_at)
        elif self._standstill.seconds > clocks.STALL_QUIET_S:
            self._look_at_standstill(running)

    def stop(self, running: list[int]) -> None:
        """
        Note where each rank is, and then release all ranks, because Stop was pressed.
        """
        if self._standstill is None:
            self._standstill = self._make_detector()
        self._standstill.look(running)
        halts = self._standstill.halts
        able = [rank for rank in running if rank not in halts]
        time_limit = LoadAwareTimeout(
            clocks.STOP_ANSWER_S, lambda: self.ranks.control.pids(able), self._clock
        )
        self._ask(running, until=lambda: time_limit.is_over, may_interrupt_sleep=True)
        # Keep the diagnosis of a deadlock that was found a moment ago: of its ranks, some have been
        # released since then, and the others show only a part of it.
        if not self.deadlocked:
            self.diagnosis = diagnose(self.all_snapshots(running), running, halts)
        self._release()

    def _make_detector(self):
        return StallDetector(len(self.ranks), lambda: self.ranks.supervisor.pids, self._clock)

    def all_snapshots(self, running: Collection[int]) -> Snapshots:
        """
        Return {rank: its snapshot, or None} for all ranks. Finished ranks report their collectives.
        The snapshot of a rank that was not asked to run the cell is marked as `outside`.
        """
        dead = self.ranks.dead
        others = [r for r in range(len(self.ranks)) if r not in running and r not in dead]
        snapshots = {r: self.last_snapshots[r] for r in running if r in self.last_snapshots}
        snapshots.update(self.ranks.control.snapshots(others))
        for rank in set(snapshots) - set(self.targets):
            snapshots[rank] = replace(snapshots[rank], outside=True)
        for rank in set(snapshots) & set(self.ranks.engines.hosts):
            snapshots[rank] = replace(snapshots[rank], host=self.ranks.engines.hosts[rank])
        known = set(range(len(self.ranks))) - (set(dead) - set(self.targets))
        return {rank: snapshots.get(rank) for rank in sorted(known)}

    def replied_to(self) -> dict[int, str | None]:
        """
        Return {rank: id of the last request to which it has replied}, as the ranks reported it.
        """
        told: dict[int, RankSnapshot | AgentState] = {
            **self.last_snapshots,
            **(self.unblocker.agent_states if self.unblocker else {}),
        }
        return {rank: said.replied_to for rank, said in told.items()}

    def _look_after_fault(self, running, fault_at):
        if self._stats_at_fault is None:
            self._stats_at_fault = {rank: self._standstill.stats(rank) for rank in running}
        self._ask(running)
        chances = [
            self._standstill.had_a_chance(
                rank,
                self.last_snapshots.get(rank)
                if self._answered_at.get(rank, 0) > fault_at
                else None,
                fault_at,
                self._stats_at_fault.get(rank),
            )
            for rank in running
        ]
        if all(chances):
            self._release()

    def _look_at_standstill(self, running):
        before = dict(self.last_snapshots)
        stalled = self._standstill.seconds > clocks.STALL_REPORT_S
        # The signal that makes a silent rank write its stack also ends a sleep in C. So it is sent
        # only once a rank has held up the others for long.
        self._ask(running, may_interrupt_sleep=stalled and not self._table_shown)
        snapshots = {rank: self.last_snapshots.get(rank) for rank in running}
        if any(
            self._standstill.moves_in_a_call(rank, snapshot) for rank, snapshot in snapshots.items()
        ):
            self._standstill.begin_anew()
            return
        if any(self._has_gone_on(rank, before, snapshot) for rank, snapshot in snapshots.items()):
            self._standstill.begin_anew()
            return
        if self._standstill.seconds > clocks.DEADLOCK_S and all(
            is_communicating(snapshot)
            and self._is_confirmed(rank)
            and self._standstill.waits_forever(rank, snapshot)
            for rank, snapshot in snapshots.items()
        ):
            everybody = self.all_snapshots(running)
            waiting = _with_busy_untargeted_ranks(running, everybody)
            if is_deadlock(everybody, waiting, self._standstill.seconds):
                self.deadlocked = True
                self.diagnosis = diagnose(everybody, waiting)
                self._release()
                return
        if stalled and not self._table_shown:
            everybody = self.all_snapshots(running)
            waiting = _with_busy_untargeted_ranks(running, everybody)
            self._show_table(diagnose(everybody, waiting, self._standstill.halts))

    def _has_gone_on(self, rank, before, snapshot):
        # First answer from this rank: there is no snapshot to compare it with, so use its turns.
        if snapshot is not None and rank not in before:
            return self._standstill.had_turns(rank)
        return before.get(rank) != snapshot

    def _is_confirmed(self, rank):
        # The rank was asked once more after the cell had come to a standstill.
        assert self._standstill.began_at is not None
        return self._answered_at[rank] >= self._standstill.began_at

    def _show_table(self, diagnosis):
        if diagnosis.sentence:
            self._table_shown = True
            print(f"No progress for {clocks.STALL_REPORT_S:.0f} s: {diagnosis.sentence}.")
            print(diagnosis.table, flush=True)

    def _ask(self, running, until=None, may_interrupt_sleep=False):
        """
        Request snapshots of ranks, and note the replies. Each rank has one open request at most.

        Args:
            running: The ranks to ask.
            until: Function that returns whether to stop waiting. Default: after `STALL_ANSWER_S`.
            may_interrupt_sleep: Whether to signal a rank that cannot answer, even if that ends a
                sleep in C.
        """
        now = self._clock()
        missing = [rank for rank in running if rank not in self._questions]
        for rank, future in self.ranks.control.ask_snapshots(missing).items():
            self._questions[rank] = (now, self._agent_turns(rank), future)
        until = until or (lambda: self._clock() - now > clocks.STALL_ANSWER_S)
        look_at = now + clocks.STALL_GUARD_LOOK_EVERY_S
        while not until() and self._unanswered(running):
            if self._clock() >= look_at:
                if not any(map(self._may_answer, running)):
                    break
                look_at += clocks.STALL_GUARD_LOOK_EVERY_S
            time.sleep(clocks.POLL_S)  # polls: a reply does not wake this thread
        for rank in running:
            if rank in self._questions and not self._may_answer(rank):
                self._ask_from_outside(rank, may_interrupt_sleep)

    def _hear(self):
        for rank, (when, _, future) in list(self._questions.items()):
            if future.done():
                del self._questions[rank]
                if future.exception() is None:
                    self.last_snapshots[rank] = snapshot_in(future.result())
                    self._answered_at[rank] = when

    def _agent_turns(self, rank):
        stats = self._standstill.stats(rank)
        return stats.agent_turns if stats else 0

    def _unanswered(self, running):
        self._hear()
        return any(rank in self._questions for rank in running)

    def _may_answer(self, rank):
        """
        Return whether a rank that was asked may still answer.
        """
        if rank not in self._questions or rank not in self.ranks.supervisor.pids:
            return False
        asked_at, turns, _ = self._questions[rank]
        self._standstill.look_again(rank)
        if self._standstill.stats(rank) is None:
            return self._clock() - asked_at < clocks.STALL_UNKNOWN_ANSWER_S
        # An agent that had so many turns would have answered, unless C code holds the interpreter.
        return self._agent_turns(rank) - turns < clocks.GIL_HELD_TURNS

    def _ask_from_outside(self, rank, may_interrupt_sleep):
        if rank in self._from_outside:
            return
        snapshot = snapshot_from_outside(
            self.ranks.supervisor,
            rank,
            lambda line: source_line(self.source, line),
            may_interrupt_sleep,
        )
        if snapshot is not None:
            self._from_outside[rank] = self.last_snapshots[rank] = snapshot
            self._answered_at[rank] = self._clock()

    def _release(self):
        self.unblocker = Unblocker(self.ranks, limits=manual_joins.short_joins(self.last_snapshots))


def _with_busy_untargeted_ranks(running, snapshots):
    # A rank outside the cell may still run an earlier cell: keep it in the wait graph.
    return running + [rank for rank in snapshots if is_busy_outside(snapshots[rank])]
