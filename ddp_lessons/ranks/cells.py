"""
Run one cell on ranks, and come back whatever happens in it.

The kernel waits for replies, for deaths, for Stop and for the clock at once. Ranks that cannot go
on are released; ranks that cannot even be released are replaced.
"""

import queue
import signal
import threading
import time

from ddp_lessons.errors import CellStopped, RankDied, RankRaised, RanksGone
from ddp_lessons.ranks import report
from ddp_lessons.ranks.diagnosis import diagnose, is_deadlock, rank_names, waits
from ddp_lessons.ranks.output import OrderedDisplay, RankOutput
from ddp_lessons.ranks.progress import Progress
from ddp_lessons.ranks.report import DIED, OK, RAISED, RELEASED, Outcome
from ddp_lessons.ranks.stacks import place_from_outside

_PEER_IS_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
_TICK_S = 0.05
_LOOK_EVERY_S = 0.2
_QUIET_S = 0.35
_DEADLOCK_S = 0.45
_STALL_S = 5.0
_GRACE_WAITING_S = 0.15
_GRACE_COMPUTING_S = 0.6
_FREE_WITHIN_S = 0.7
_FREE_SILENT_WITHIN_S = 0.3
_FREE_COMPUTING_WITHIN_S = 10.0
_OUTPUT_WITHIN_S = 1.0


class CellRun:
    """
    One cell on some ranks.

    Args:
        ranks: The Ranks.
        source: The cell's text.
        targets: Rank numbers to run it on.
    """

    def __init__(self, ranks, source, targets):
        self.ranks = ranks
        self.source = source
        self.targets = list(targets)
        self.futures = {}
        self.outcomes = {}
        self.diagnosis = None
        self.stopped = False
        self.deadlocked = False
        self._outputs = {rank: RankOutput() for rank in self.targets}
        self._display = OrderedDisplay(self._outputs)
        self._events = queue.SimpleQueue()
        self._fault_at = None
        self._released_at = None
        self._places = {}
        self._from_outside = set()
        self._table_shown = False
        self._progress = None
        self._same_since = time.monotonic()

    # ---- the run ----

    def submit(self):
        """
        Send the cell to its ranks.
        """
        self.ranks.keeper.on_event(self._on_keeper_event)
        for rank in self.targets:
            self._submit_to(rank)

    def leave_alone(self):
        """
        Hear of no more deaths: nobody is going to wait for this run.
        """
        self.ranks.keeper.off_event(self._on_keeper_event)

    def _submit_to(self, rank):
        client, output = self.ranks.client, self._outputs[rank]
        future = client.send_execute_request(
            client._mux_stream,
            self.source,
            silent=False,
            ident=client._engines[rank].encode(),
            message_future_hook=lambda f: f.iopub_callbacks.append(self._on_output(rank, output)),
        )
        self.futures[rank] = future
        future.add_done_callback(lambda f: self._events.put(("reply", rank, f)))
        future.output.add_done_callback(lambda f: self._events.put(("complete", rank, None)))

    def _on_output(self, rank, output):
        def take(message):
            output.on_message(message)
            self._events.put(("output", rank, None))

        return take

    def _on_keeper_event(self, message):
        if message["at"] in ("died", "gone"):
            self._events.put((message["at"], message.get("rank"), message.get("code")))

    @property
    def running(self):
        """
        Ranks that have not finished the cell.
        """
        return [rank for rank in self.targets if rank not in self.outcomes]

    def wait(self):
        """
        Wait until every rank has finished, was freed, or was replaced. Shows output as it comes.
        """
        with _StopCatcher(lambda: self._events.put(("stop", None, None))):
            look_at = time.monotonic() + _LOOK_EVERY_S
            while self.running:
                self._take_events()
                self._display.update(self._complete())
                if time.monotonic() >= look_at and self.running:
                    self._look()
                    look_at = time.monotonic() + _LOOK_EVERY_S
            self._wait_for_output()
            self.leave_alone()
            return self._conclude()

    def _take_events(self):
        try:
            what, rank, detail = self._events.get(timeout=_TICK_S)
            while True:
                self._take(what, rank, detail)
                what, rank, detail = self._events.get_nowait()
        except queue.Empty:
            return

    def _take(self, what, rank, detail):
        if what == "reply" and rank not in self.outcomes:
            self._on_reply(rank, detail.result())
        elif what == "complete":
            self._outputs[rank].done = True
        elif what == "died" and rank in self.targets:
            self._on_death(rank, detail)
        elif what == "gone":
            for left in self.running:
                self._on_death(left, None)
        elif what == "stop":
            self._on_stop()

    def _on_reply(self, rank, reply):
        if getattr(reply, "ename", None) is None and hasattr(reply, "_content"):
            told = reply._content.get("ddp_lessons", {})
            self.outcomes[rank] = Outcome(OK, digest=told.get("digest", ""))
            return
        if type(reply).__name__ == "TaskAborted":  # never ran: the engine was clearing its queue
            self._submit_to(rank)
            return
        if type(reply).__name__ == "EngineError" or "ddp_lessons" not in reply.engine_info:
            if rank in self.ranks.dead or not self.ranks.has_warden:
                self._on_death(rank, self.ranks.keeper.last_death.get(rank))
                return
        told = reply.engine_info.get("ddp_lessons", {})
        self.outcomes[rank] = Outcome(
            RELEASED if self._is_victim(told, reply) else RAISED,
            ename=reply.ename,
            evalue=told.get("text", reply.evalue),
            line=told.get("line"),
            code=told.get("code", ""),
            traceback=reply.traceback or "",
        )
        self._fault()

    def _is_victim(self, told, reply):
        if told.get("released") or self._released_at is not None:
            return True
        peer_is_gone = any(outcome.kind == DIED for outcome in self.outcomes.values())
        peer_is_gone = peer_is_gone or bool(self.ranks.dead)
        return peer_is_gone and any(words in reply.evalue for words in _PEER_IS_GONE)

    def _on_death(self, rank, code):
        place = self._places.get(rank) or {}
        self.outcomes[rank] = Outcome(
            DIED, exit_code=code, line=place.get("line"), code=place.get("code", "")
        )
        self._fault()

    def _fault(self):
        if self._fault_at is None:
            self._fault_at = time.monotonic()

    def _on_stop(self):
        if self.stopped:
            return
        self.stopped = True
        self._ask_places()
        self.diagnosis = diagnose(self._all_places(), self.running)
        self._release()

    # ---- looking after a cell that does not come back ----

    def _look(self):
        now = time.monotonic()
        if self._progress is None:  # most cells are over before anybody looks
            self._watch_progress()
        self._progress.sample()
        if self._released_at is not None:
            self._replace_what_stays(now)
        elif self._fault_at is not None:
            self._ask_places()
            age = now - self._fault_at
            all_wait = all(waits(self._places.get(rank)) for rank in self.running)
            if age > (_GRACE_WAITING_S if all_wait else _GRACE_COMPUTING_S):
                self._release()
        elif self._progress.still_s > _QUIET_S:
            self._look_at_standstill(now)
        else:
            self._same_since = now

    def _watch_progress(self):
        self._progress = Progress(lambda: list(self.ranks.keeper.pids.values()))

    def _look_at_standstill(self, now):
        before = self._places
        # The signal that makes a silent rank tell its line wakes it from a sleep in C, so it is
        # kept for a rank that holds the others up for long.
        stalled = now - self._same_since > _STALL_S
        self._ask_places(insist=stalled and not self._table_shown)
        if before != self._places and not self._silent:
            self._same_since = now
            return
        places = self._all_places()
        if now - self._same_since > _DEADLOCK_S and is_deadlock(places, self.running):
            self.deadlocked = True
            self.diagnosis = diagnose(places, self.running)
            self._release()
        elif stalled and not self._table_shown:
            diagnosis = diagnose(places, self.running)
            if diagnosis.sentence:
                self._table_shown = True
                print(f"No progress for {_STALL_S:.0f} s: {diagnosis.sentence}.")
                print(diagnosis.table, flush=True)

    def _ask_places(self, insist=True):
        answers = self.ranks.places(self.running)
        self._from_outside = set()
        for rank in self.running:
            if rank not in answers and rank not in self.ranks.dead and self.ranks.has_warden:
                place = place_from_outside(self.ranks.keeper, rank, self._source_line, insist)
                answers[rank] = place
                self._from_outside.add(rank)
        self._places = answers

    @property
    def _silent(self):
        return [rank for rank in self.running if rank in self._from_outside]

    def _source_line(self, line):
        lines = self.source.splitlines()
        return lines[line - 1].strip() if line and line <= len(lines) else ""

    def _all_places(self):
        """
        The places of all ranks of the cell: those of the finished ones say what they have called.
        """
        finished = [r for r in self.targets if r not in self.running and r not in self.ranks.dead]
        places = {**self.ranks.places(finished), **self._places}
        return {rank: places.get(rank) for rank in self.targets}

    def _release(self):
        self._released_at = time.monotonic()
        self._watch_progress()
        self.ranks.release(self.running)
        self.ranks.cut(self._silent)

    def _replace_what_stays(self, now):
        age = now - self._released_at
        if age < (_FREE_SILENT_WITHIN_S if self._silent == self.running else _FREE_WITHIN_S):
            return
        computes = self._progress.still_s < _FREE_WITHIN_S
        if computes and age < _FREE_COMPUTING_WITHIN_S and not self.stopped:
            return
        if self.ranks.has_warden:
            self._ask_places()
            self.ranks.kill(self.running)

    # ---- the end ----

    def _complete(self):
        return {rank for rank in self.outcomes if self._outputs[rank].done or self._is_dead(rank)}

    def _is_dead(self, rank):
        return self.outcomes[rank].kind == DIED

    def _wait_for_output(self):
        deadline = time.monotonic() + _OUTPUT_WITHIN_S
        while len(self._complete()) < len(self.targets) and time.monotonic() < deadline:
            self._take_events()
            self._display.update(self._complete())
        self._display.update(set(self.targets))

    def _conclude(self):
        if not self.ranks.alive:
            return _ranks_are_gone()
        kinds = {outcome.kind for outcome in self.outcomes.values()}
        failed = kinds != {OK} or self.stopped
        mismatch = None
        if not failed and len({o.digest for o in self.outcomes.values()}) > 1:
            mismatch = self._find_mismatch()
        if not failed and mismatch is None:
            return None
        in_order = kinds == {RAISED} and self._find_mismatch() is None and self._same_counts()
        replaced = self.ranks.replace_dead()
        stale, regrouped = [], not in_order
        if regrouped:
            stale = self.ranks.join() if self.ranks.joined else self.ranks.leave()
        return self._error(mismatch, stale, regrouped, replaced)

    def _find_mismatch(self):
        diagnosis = diagnose(self._all_places(), [])
        return diagnosis.sentence or None

    def _same_counts(self):
        counts = {
            str([(c["group"], c["number"]) for c in place["collectives"]])
            for place in self._all_places().values()
            if place is not None
        }
        return len(counts) <= 1

    def _error(self, mismatch, stale, regrouped, replaced):
        outcomes = self.outcomes
        kinds = {outcome.kind for outcome in outcomes.values()}
        traceback = []
        if self.stopped:
            kind, head = CellStopped, self._stop_head()
        elif self.deadlocked:
            kind, head = RankRaised, f"Deadlock: {self.diagnosis.sentence}.\n{self.diagnosis.table}"
        elif mismatch is not None:
            kind, head = RankRaised, f"{mismatch}. What came out is not to be trusted"
        elif DIED in kinds:
            kind, head = RankDied, report.died_message(outcomes)
        else:
            kind = RankRaised
            head, traceback = report.raised_message(outcomes)
        parts = [
            head,
            report.victims_sentence(outcomes),
            report.replaced_sentence(replaced),
            report.group_sentence(self.ranks.joined, stale, regrouped),
        ]
        return kind("\n".join(part for part in parts if part), traceback)

    def _stop_head(self):
        raised = [rank for rank, outcome in self.outcomes.items() if outcome.kind == RAISED]
        if raised:
            return report.raised_message(self.outcomes)[0]
        if self.diagnosis is not None and self.diagnosis.sentence:
            return f"Stopped: {self.diagnosis.sentence}."
        at = {}
        for rank, place in self._places.items():
            if place and place["line"]:
                at.setdefault((place["line"], place["code"]), []).append(rank)
        parts = [
            f"{rank_names(ranks)} {'was' if len(ranks) == 1 else 'were'} at line {line}: {code}"
            for (line, code), ranks in at.items()
        ]
        return (
            "Stopped: " + ("; ".join(parts) or f"{rank_names(self.targets)} did not answer") + "."
        )


class _StopCatcher:
    """
    Turn SIGINT into an event for the length of a cell, so that Stop can never tear the waiting,
    the releasing or the rejoining in two. Only the main thread gets signals.
    """

    def __init__(self, on_stop):
        self._on_stop = on_stop
        self._previous = None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, lambda *_: self._on_stop())
        return self

    def __exit__(self, *exc_info):
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)


def run_cell(ranks, source, targets=None):
    """
    Run a cell on ranks and show what they print, in rank order.

    Args:
        ranks: The running Ranks.
        source: The cell's text.
        targets: Rank numbers; default all.

    Raises:
        CellFailed: A rank raised, died, or was stopped. Every rank is idle and usable again.
        RanksGone: The ranks were stopped, or have died with their warden.
    """
    if not ranks.alive:
        raise _ranks_are_gone()
    targets = list(range(len(ranks))) if targets is None else list(targets)
    dead = ranks.dead
    if dead:
        raise _replace_the_idle_dead(ranks, dead)
    run = CellRun(ranks, source, targets)
    run.submit()
    error = run.wait()
    if error is not None:
        raise error


def _ranks_are_gone():
    return RanksGone("The ranks are gone: stopped, or ended from outside. Run start_ranks() again.")


def _replace_the_idle_dead(ranks, dead):
    outcomes = {rank: Outcome(DIED, exit_code=ranks.keeper.last_death.get(rank)) for rank in dead}
    replaced = ranks.replace_dead()
    stale = ranks.join() if ranks.joined else ranks.leave()
    parts = [
        report.died_message(outcomes),
        report.replaced_sentence(replaced),
        report.group_sentence(ranks.joined, stale, True),
        "This cell was not run: run the cells that this rank needs, then this one again.",
    ]
    return RankDied("\n".join(part for part in parts if part))
