"""
The transport of a cell: its requests and their replies, in the thread of ipyparallel's client.
"""

from __future__ import annotations

import contextlib
import json
import queue
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ipyparallel.error import RemoteError

from ddp_lessons.errors import PrivateNameGone, RanksGone
from ddp_lessons.private.ipyparallel_client import (
    cell_stream,
    client_thread_is_alive,
    content_of,
    end_request,
    identity_of,
    reply_handlers,
    run_in_client_thread,
)
from ddp_lessons.ranks.messages.cell_requests import BRIEF, transformed
from ddp_lessons.ranks.messages.report import report_in
from ddp_lessons.ranks.system import clocks

if TYPE_CHECKING:
    from ipyparallel import Client
    from ipyparallel.client.futures import MessageFuture

    from ddp_lessons.ranks.kernel.output import RankOutput


class CellTransport:
    """
    The requests of one cell, and a queue of events about them, each (what, rank, detail).

    Args:
        client: ipyparallel's client.
        source: The cell's text.
        outputs: For each rank its RankOutput.
        is_brief: Whether ranks may omit what only an AsyncResult needs (see `RankKernel`).

    Attributes:
        futures: For each rank the future of its reply.
    """

    def __init__(
        self, client: Client, source: str, outputs: Mapping[int, RankOutput], is_brief: bool
    ) -> None:
        self.futures: dict[int, MessageFuture] = {}
        self._client = client
        self._source = source
        self._outputs = outputs
        self._metadata = {BRIEF: True, **transformed(source)} if is_brief else {}
        self._awaited: set[int] = set()  # ranks whose reply has not come
        # rank -> (id of its request, future of a ping that was sent later)
        self._pings: dict[int, tuple[str, Future[int]]] = {}
        self._news: deque[tuple[str, int | None, Any]] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # a signal handler may write it

    def send(self, ranks: Iterable[int] | None = None) -> None:
        """
        Send the cell, in the client's thread, which alone uses the client's sockets.

        Args:
            ranks: Numbers of the ranks to send it to. Default: all.
        """
        sent: Future[None] = Future()
        ranks = list(self._outputs if ranks is None else ranks)
        run_in_client_thread(self._client, self._send, ranks, sent)
        while client_thread_is_alive(self._client) and not sent.done():
            wait([sent], clocks.SEND_LOOK_EVERY_S)
        if not sent.done():  # the thread has ended meanwhile
            self._send(ranks, sent)  # fails, because the client is closed
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
        has_said_all = _has_said_all(reply)
        output.done = output.done or has_said_all
        # Do not wake the waiting thread for a reply without output, unless it is the last one: it
        # would contend for the interpreter with this thread, which has other replies to read.
        self.tell("reply", rank, reply, wakes=not (has_said_all and self._awaited))
        if has_said_all:
            future.output.set_result(None)

    def _on_complete(self, rank):
        if not self._outputs[rank].done:
            self.tell("complete", rank)

    def lost(self, replied_to: Mapping[int, str | None]) -> set[int]:
        """
        Find lost replies: a rank has sent its reply, and has answered a ping that was sent later.

        Both replies travel over the same connection in order, so the first one should be here.

        Args:
            replied_to: {rank: id of the last request to which it has replied}, as ranks reported.

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

    def tell(
        self, what: str, rank: int | None = None, detail: object = None, wakes: bool = True
    ) -> None:
        """
        Add an event. Any thread may call this, and so may a signal handler.

        Args:
            what, rank, detail: The event: its kind, such as "reply"; its rank or None; its data.
            wakes: Whether to wake the waiting thread. If not, it reads this event with a later one.
        """
        self._news.append((what, rank, detail))
        if wakes:
            self._bell.put(None)

    def news(self, within_s: float) -> Iterator[tuple[str, int | None, Any]]:
        """
        Yield all events, after a wait of up to `within_s` seconds for the first one.
        """
        with contextlib.suppress(queue.Empty):
            self._bell.get(timeout=within_s)
            while True:  # one wake-up is enough for all events
                self._bell.get_nowait()
        while self._news:
            yield self._news.popleft()


def _has_said_all(reply):
    if isinstance(reply, RemoteError):
        return False
    try:
        report = report_in(content_of(reply))
    except PrivateNameGone:
        return False  # raised again where the reply is read, as an error in this thread is lost
    return report is not None and report.has_said_all


def tell_unreadable_results(client: Client) -> None:
    """
    Make a client report a result that it cannot read, such as one of a class that only ranks know.

    Else the error would stay in the client's thread, and the result would be awaited for ever.

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


def unpack(packed: bytes) -> Any:
    """
    Decode one part of a message, with its "date" as a datetime.

    jupyter_client would search the part for dates with a slow, general parser, which takes longer
    than the rest of the message. It does not parse a value that is a datetime already.

    Args:
        packed: bytes, JSON in UTF-8. Bytes that are not UTF-8, as in the names of some files,
            become the replacement character.

    Returns:
        Any: The value that `json.loads` returns, with a datetime under "date".

    Source: https://jupyter-client.readthedocs.io/en/stable/messaging.html, general message format.
    """
    value = json.loads(str(packed, "utf-8", "replace"))
    if isinstance(value, dict) and isinstance(value.get("date"), str):
        value["date"] = datetime.fromisoformat(value["date"])
    return value
