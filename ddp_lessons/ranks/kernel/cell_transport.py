"""
Send a cell to ranks, and read what comes back: in the thread of ipyparallel's client.
"""

import contextlib
import json
import queue
from collections import deque
from concurrent.futures import Future, wait
from datetime import datetime

from ipyparallel.error import RemoteError

from ddp_lessons.errors import RanksGone
from ddp_lessons.private.ipyparallel_client import (
    cell_stream,
    client_thread_is_alive,
    end_request,
    identity_of,
    reply_handlers,
    run_in_client_thread,
)
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.cell_requests import BRIEF, has_said_all, transformed


class CellTransport:
    """
    The requests of one cell, and news of them for whoever waits: (what, rank, detail).

    Args:
        client: ipyparallel's client.
        source: The cell's text.
        outputs: For each rank its RankOutput.
        is_brief: Whether ranks may leave out what only an AsyncResult needs: see `RankKernel`.

    Attributes:
        futures: For each rank the future of its reply.
    """

    def __init__(self, client, source, outputs, is_brief):
        self.futures = {}
        self._client = client
        self._source = source
        self._outputs = outputs
        self._metadata = {BRIEF: True, **transformed(source)} if is_brief else {}
        self._awaited: set = set()  # ranks whose reply has not come
        self._pings: dict = {}  # rank -> (id of its request, future of a ping that was sent later)
        self._news: deque = deque()
        self._bell: queue.SimpleQueue = queue.SimpleQueue()  # a handler of Stop may ring it

    def send(self, ranks=None):
        """
        Send the cell, in the client's thread, which alone uses the client's sockets.

        Args:
            ranks: Those to send it to; default all.
        """
        sent: Future = Future()
        ranks = list(self._outputs if ranks is None else ranks)
        run_in_client_thread(self._client, self._send, ranks, sent)
        while client_thread_is_alive(self._client) and not sent.done():
            wait([sent], clocks.SEND_LOOK_EVERY_S)
        if not sent.done():  # the thread has ended meanwhile
            self._send(ranks, sent)  # which finds that the client is closed
        sent.result()

    def _send(self, ranks, sent):
        try:
            for rank in ranks:
                self._send_to(rank)
            sent.set_result(None)
        except Exception as error:
            sent.set_exception(error)

    def _send_to(self, rank):
        client, output = self._client, self._outputs[rank]
        identity = identity_of(client, rank)
        if identity is None:
            raise RanksGone(
                f"Rank {rank} has ended before the cell reached it. Run the cell again."
            )
        future = client.send_execute_request(
            cell_stream(client),
            self._source,
            silent=False,
            metadata=self._metadata,
            ident=identity.encode(),
            message_future_hook=lambda f: f.iopub_callbacks.append(self._on_output(rank, output)),
        )
        self.futures[rank] = future
        self._awaited.add(rank)
        future.add_done_callback(lambda f: self._on_reply(rank, f))
        future.output.add_done_callback(lambda f: self._on_complete(rank))

    def _on_output(self, rank, output):
        def take(message):
            output.on_message(message)
            self.tell("output", rank)

        return take

    def _on_reply(self, rank, future):
        self._awaited.discard(rank)
        reply, output = future.result(), self._outputs[rank]
        output.done = output.done or has_said_all(reply)
        # Who waits for all ranks is not woken for each that has nothing to show: it would take the
        # interpreter away from this thread, which has the others' replies to read.
        self.tell("reply", rank, reply, wakes=not (has_said_all(reply) and self._awaited))
        if has_said_all(reply):
            future.output.set_result(None)

    def _on_complete(self, rank):
        if not self._outputs[rank].done:
            self.tell("complete", rank)

    def lost(self, replied_to):
        """
        Find replies that never come: a rank has sent one, and answered what it was asked later.

        Both answers take the same way, on which nothing overtakes anything.

        Args:
            replied_to: For each rank that has said so the id of the request that it replied to.

        Returns:
            set[int]: The ranks whose reply is lost.
        """
        for rank in list(self._awaited):
            request = self.futures[rank].msg_id
            if replied_to.get(rank) == request != self._pings.get(rank, ("",))[0]:
                self._pings[rank] = request, self._client.direct_view(rank).apply_async(int)
        return {
            rank
            for rank, (request, ping) in self._pings.items()
            if ping.done() and rank in self._awaited and self.futures[rank].msg_id == request
        }

    def tell(self, what, rank=None, detail=None, wakes=True):
        """
        Add news. Any thread may, and a signal's handler.

        Args:
            what, rank, detail: The news.
            wakes: Whether to wake who waits; without it the news are read with the next ones.
        """
        self._news.append((what, rank, detail))
        if wakes:
            self._bell.put(None)

    def news(self, within_s):
        """
        Give all news, after waiting some seconds for some.
        """
        with contextlib.suppress(queue.Empty):
            self._bell.get(timeout=within_s)
            while True:  # it rings once for all news
                self._bell.get_nowait()
        while self._news:
            yield self._news.popleft()


def tell_unreadable_results(client):
    """
    Have a client raise what keeps it from reading a result, such as a class that only ranks know.

    Otherwise that error ends in the client's thread, and the result is waited for forever.

    Args:
        client: ipyparallel's client.
    """
    handlers = reply_handlers(client)
    read = handlers["apply_reply"]

    def read_or_tell(message):
        try:
            read(message)
        except Exception as error:
            request = message["parent_header"]["msg_id"]
            engine = {"engine_id": client.metadata[request]["engine_id"], "method": "apply"}
            told = RemoteError(type(error).__name__, str(error), "", engine)
            end_request(client, request, told)

    handlers["apply_reply"] = read_or_tell


def unpack(packed):
    """
    Return what a message's part stands for, its own date as a datetime.

    Dates take longer than all else in a message: jupyter_client looks for them by a parser that
    knows many ways to write one. What is a datetime already it leaves alone.

    Args:
        packed: bytes, JSON in UTF-8. Bytes that are not UTF-8, as in the names of some files,
            become the replacement sign.

    Returns:
        Any: What `json.loads` gives, with a datetime under "date".

    Source: https://jupyter-client.readthedocs.io/en/stable/messaging.html, general message format.
    """
    value = json.loads(str(packed, "utf-8", "replace"))
    if isinstance(value, dict) and isinstance(value.get("date"), str):
        value["date"] = datetime.fromisoformat(value["date"])
    return value
