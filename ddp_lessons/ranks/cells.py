"""
Run one cell on ranks, and come back whatever happens in it.

The kernel waits for replies, for deaths, for Stop and for the clock at once.
"""

import queue
import signal
import threading
import time

from ipyparallel.error import RemoteError, TaskAborted

from ddp_lessons.ranks.lookout import LOOK_EVERY_S, Lookout
from ddp_lessons.ranks.output import OrderedDisplay, RankOutput
from ddp_lessons.ranks.report import DIED, OK, RAISED, RELEASED, Outcome
from ddp_lessons.ranks.verdict import conclude, ranks_are_gone, replace_the_idle_dead

_PEER_IS_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
_TICK_S = 0.05
_OUTPUT_WITHIN_S = 1.0


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
        raise ranks_are_gone()
    if ranks.dead:
        raise replace_the_idle_dead(ranks)
    run = CellRun(ranks, source, range(len(ranks)) if targets is None else targets)
    run.submit()
    error = run.wait()
    if error is not None:
        raise error


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
        self._outputs = {rank: RankOutput() for rank in self.targets}
        self._display = OrderedDisplay(self._outputs)
        self._events: queue.SimpleQueue = queue.SimpleQueue()
        self._lookout = Lookout(ranks, source, self.targets)
        self._stopped = False
        self._fault_at = None

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

    def stop(self):
        """
        Free every rank, as when Stop is pressed. Any thread may call it while another waits.
        """
        self._events.put(("stop", None, None))

    @property
    def running(self):
        """
        Ranks that have not finished the cell.
        """
        return [rank for rank in self.targets if rank not in self.outcomes]

    def wait(self):
        """
        Wait until every rank has finished, was freed, or was replaced. Shows output as it comes.

        Returns:
            DDPLessonsError or None: What to raise.
        """
        with _StopCatcher(self.stop):
            look_at = time.monotonic() + LOOK_EVERY_S
            while self.running:
                self._take_events()
                self._display.update(self._complete())
                if self.running and time.monotonic() >= look_at:
                    self._lookout.look(self.running, self._fault_at)
                    look_at = time.monotonic() + LOOK_EVERY_S
            self._wait_for_output()
            self.leave_alone()
            return conclude(self.ranks, self.outcomes, self._lookout, self._stopped)

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
        elif what == "stop" and not self._stopped:
            self._stopped = True
            self._lookout.stop(self.running)

    def _on_reply(self, rank, reply):
        if isinstance(reply, TaskAborted):  # it never ran: the engine was clearing its queue
            self._submit_to(rank)
        elif not isinstance(reply, RemoteError):
            told = reply._content.get("ddp_lessons", {})
            self.outcomes[rank] = Outcome(OK, digest=told.get("digest", ""))
        elif "ddp_lessons" not in reply.engine_info and rank in self.ranks.dead:
            self._on_death(rank, self.ranks.keeper.last_death.get(rank))
        else:
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
        if told.get("released") or self._lookout.released_at is not None:
            return True
        peer_is_gone = bool(self.ranks.dead) or any(
            outcome.kind == DIED for outcome in self.outcomes.values()
        )
        return peer_is_gone and any(words in reply.evalue for words in _PEER_IS_GONE)

    def _on_death(self, rank, code):
        place = self._lookout.last_places.get(rank) or {}
        self.outcomes[rank] = Outcome(
            DIED, exit_code=code, line=place.get("line"), code=place.get("code", "")
        )
        self._fault()

    def _fault(self):
        if self._fault_at is None:
            self._fault_at = time.monotonic()

    def _complete(self):
        return {
            rank
            for rank, outcome in self.outcomes.items()
            if self._outputs[rank].done or outcome.kind == DIED
        }

    def _wait_for_output(self):
        deadline = time.monotonic() + _OUTPUT_WITHIN_S
        while len(self._complete()) < len(self.targets) and time.monotonic() < deadline:
            self._take_events()
            self._display.update(self._complete())
        self._display.update(set(self.targets))


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
