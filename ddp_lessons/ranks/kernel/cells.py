"""
The run of one cell on ranks, which returns whatever happens in the cell.

The kernel waits for replies, for deaths, for Stop and for the clock at the same time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ipyparallel.error import RemoteError, TaskAborted

from ddp_lessons.private.ipyparallel_client import content_of
from ddp_lessons.ranks.diagnosis.death_report import line_of_death
from ddp_lessons.ranks.kernel.agent_client import read_stack_file
from ddp_lessons.ranks.kernel.cell_transport import CellTransport
from ddp_lessons.ranks.kernel.output import OrderedDisplay, RankOutput, output_is_missing
from ddp_lessons.ranks.kernel.recovery import ensure_ready, finish_cell
from ddp_lessons.ranks.kernel.stall_monitor import StallMonitor
from ddp_lessons.ranks.kernel.stop_button import StopButton
from ddp_lessons.ranks.messages.orders import RankProcessDied, SupervisorGone
from ddp_lessons.ranks.messages.outcome import DIED, GIVEN_UP, OK, RAISED, RELEASED, Outcome
from ddp_lessons.ranks.messages.report import CellReport, report_in
from ddp_lessons.ranks.rank.stack_snapshot import source_line
from ddp_lessons.ranks.rank.tracebacks import comes_of_a_lost_peer
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout

if TYPE_CHECKING:
    from ipyparallel.client.futures import MessageFuture

    from ddp_lessons.errors import DDPLessonsError
    from ddp_lessons.ranks.kernel.ranks import Ranks


def run_cell(ranks: Ranks, source: str, targets: Collection[int] | None = None) -> None:
    """
    Run a cell on ranks and show what they print, in rank order.

    Args:
        ranks: The running Ranks.
        source: The cell's text.
        targets: Rank numbers. Default: all.

    Raises:
        CellFailed: A rank raised, died, or was stopped. Every rank is idle and usable again.
        RanksGone: The ranks were stopped, or have died with their supervisor.
    """
    ensure_ready(ranks)
    # A function that a view has sent may be stuck on some ranks. An empty cell finds that out
    # first: else the other ranks would begin this cell, and be released in the middle of it.
    for text in ("pass", source) if ranks.client.outstanding else (source,):
        run = CellRun(ranks, text, range(len(ranks)) if targets is None else targets)
        error = run.run()
        if error is not None:
            raise error


class CellRun:
    """
    The run of one cell on some ranks.

    Args:
        ranks: The Ranks.
        source: The cell's text.
        targets: Rank numbers to run it on.
        is_brief: Whether ranks may omit what only an AsyncResult needs (see `RankKernel`).
    """

    def __init__(
        self, ranks: Ranks, source: str, targets: Iterable[int], is_brief: bool = True
    ) -> None:
        self.ranks = ranks
        self.source = source
        self.targets = list(targets)
        self.outcomes: dict[int, Outcome] = {}
        self._outputs = {rank: RankOutput() for rank in self.targets}
        self._display = OrderedDisplay(self._outputs)
        self._requests = CellTransport(ranks.client, source, self._outputs, is_brief)
        self._stall_monitor = StallMonitor(ranks, source, self.targets)
        self._stopped = False
        self._fault_at: float | None = None

    def submit(self) -> None:
        """
        Send the cell to its ranks.
        """
        self.ranks.supervisor.on_event(self._on_supervisor_event)
        try:
            self._requests.send()
        except BaseException:
            self.leave_alone()
            raise

    def run(self) -> DDPLessonsError | None:
        """
        Send the cell, and wait. Stop works even before the first rank has received the cell.

        Returns:
            DDPLessonsError or None: The error to raise; None if all went well.
        """
        with StopButton(self.stop):
            self.submit()
            return self._wait()

    def leave_alone(self) -> None:
        """
        Stop listening for deaths, because nothing waits for this run any more.
        """
        self.ranks.supervisor.off_event(self._on_supervisor_event)

    def stop(self) -> None:
        """
        Release every rank, as Stop does. Any thread may call this while another thread waits.
        """
        self._requests.tell("stop")

    @property
    def futures(self) -> dict[int, MessageFuture]:
        """
        The future of each rank's reply, by rank.
        """
        return self._requests.futures

    @property
    def running(self) -> list[int]:
        """
        The ranks that have not finished the cell.
        """
        return [rank for rank in self.targets if rank not in self.outcomes]

    def wait(self) -> DDPLessonsError | None:
        """
        Wait until every rank has finished, was released, or has ended. Show output meanwhile.

        Returns:
            DDPLessonsError or None: The error to raise; None if all went well.
        """
        with StopButton(self.stop):
            return self._wait()

    def _wait(self):
        look_at = time.monotonic() + clocks.STALL_LOOK_EVERY_S
        while self.running:
            self._take_events()
            self._display.update(self._complete())
            if self.running and time.monotonic() >= look_at:
                self._stall_monitor.look(self.running, self._fault_at)
                for rank in self._requests.lost(self._stall_monitor.replied_to()):
                    self._on_lost_reply(rank)
                look_at = time.monotonic() + clocks.STALL_LOOK_EVERY_S
        self._wait_for_output()
        self._mark_collateral()
        self.leave_alone()
        return finish_cell(self.ranks, self.outcomes, self._stall_monitor, self._stopped)

    def _on_supervisor_event(self, event):
        if isinstance(event, RankProcessDied):
            self._requests.tell("died", event.rank, (event.pid, event.code))
        elif isinstance(event, SupervisorGone):
            self._requests.tell("gone")

    def _take_events(self):
        for event in self._requests.news(clocks.CELL_TICK_S):
            self._take(*event)

    def _take(self, what, rank, detail):
        if what == "reply" and rank not in self.outcomes:
            self._on_reply(rank, detail)
        elif what == "complete":
            self._outputs[rank].done = True
        elif what == "died" and rank in self.targets:
            self._on_death(rank, *detail)
        elif what == "gone":
            for left in self.running:
                self._on_death(left, None, None)
        elif what == "stop" and not self._stopped:
            self._stopped = True
            self._stall_monitor.stop(self.running)

    def _on_reply(self, rank, reply):
        if isinstance(reply, TaskAborted):  # the cell did not run: the engine cleared its queue
            self._requests.send([rank])
        elif not isinstance(reply, RemoteError):
            report = report_in(content_of(reply)) or CellReport()
            self.outcomes[rank] = Outcome(OK, digest=report.digest, enclosed=report.enclosed)
        elif (error_report := report_in(reply.engine_info)) is None and rank in self.ranks.dead:
            unknown = self.ranks.engines.pid(rank), None  # other launchers report no exit code
            self._on_death(rank, *self.ranks.supervisor.last_death.get(rank, unknown))
        else:
            report = error_report or CellReport()
            self.outcomes[rank] = Outcome(
                RELEASED if report.released else RAISED,
                ename=reply.ename,
                evalue=report.text or reply.evalue,
                line=report.line,
                code=report.code,
                traceback=reply.traceback or "",
                enclosed=report.enclosed,
            )
            self._fault()

    def _on_lost_reply(self, rank):
        if rank not in self.outcomes:
            told = "the cell has ended, and the reply that says how was lost on its way"
            self.outcomes[rank] = Outcome(RAISED, "ReplyLost", told)
            self._outputs[rank].done = True
            self._fault()

    def _on_death(self, rank, pid, code):
        snapshot = self._stall_monitor.last_snapshots.get(rank)
        where = line_of_death(
            read_stack_file(self.ranks.supervisor.folder, rank),
            snapshot,
            lambda line: source_line(self.source, line),
        )
        kind = GIVEN_UP if self.ranks.engines.was_killed_by_us(pid) else DIED
        unblocker = self._stall_monitor.unblocker
        halt = unblocker.halts.get(rank, "") if unblocker else ""
        self.outcomes[rank] = Outcome(kind, exit_code=code, halt=halt, **where)
        self._fault()

    def _mark_collateral(self):
        """
        Mark the collateral: ranks that raised only because a peer had died or had been released.
        """
        ranks_without_peer = [
            rank
            for rank, outcome in self.outcomes.items()
            if outcome.kind == RAISED and comes_of_a_lost_peer(outcome.evalue)
        ]
        if not ranks_without_peer:
            return
        # The report of a death may arrive later than the errors that the death caused.
        time_limit = LoadAwareTimeout(clocks.NEWS_S, lambda: [self.ranks.supervisor.supervisor_pid])
        while not self._has_culprit(ranks_without_peer) and not time_limit.is_over:
            self._take_events()
        if self._has_culprit(ranks_without_peer):
            for rank in ranks_without_peer:
                self.outcomes[rank] = replace(self.outcomes[rank], kind=RELEASED)

    def _has_culprit(self, ranks_without_peer):
        others = self.outcomes.keys() - set(ranks_without_peer)
        kinds = {self.outcomes[rank].kind for rank in others}
        is_ended = self._stopped or self._stall_monitor.deadlocked
        return is_ended or bool(self.ranks.dead or kinds & {RAISED, DIED, GIVEN_UP})

    def _fault(self):
        if self._fault_at is None:
            self._fault_at = time.monotonic()

    def _complete(self):
        return {
            rank
            for rank, outcome in self.outcomes.items()
            if self._outputs[rank].done or outcome.kind in (DIED, GIVEN_UP)
        }

    def _wait_for_output(self):
        time_limit = LoadAwareTimeout(
            clocks.OUTPUT_S, lambda: self.ranks.control.pids(self.targets)
        )
        while len(self._complete()) < len(self.targets) and not time_limit.is_over:
            self._take_events()
            self._display.update(self._complete())
        silent = set(self.targets) - self._complete()
        self._display.update(set(self.targets))
        if silent:
            print(output_is_missing(silent, clocks.OUTPUT_S), file=sys.stderr, flush=True)
