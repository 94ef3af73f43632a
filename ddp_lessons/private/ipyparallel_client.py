"""
Private names of ipyparallel's Client: its sockets, its thread, and its table of engines.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ddp_lessons.private.reaching import uses_private_name

if TYPE_CHECKING:
    from ipyparallel import Client, DirectView
    from ipyparallel.client.client import ExecuteReply
    from zmq.eventloop.zmqstream import ZMQStream


@uses_private_name(
    "ipyparallel.Client()._engines",
    oldest_promised="ipyparallel 9.2",
    lost="the kernel cannot ask ranks where they are while they run a cell, so a deadlock hangs",
)
def identity_of(client: Client, rank: int) -> str | None:
    """
    Return the name under which the controller knows a rank's process; None if it knows none.
    """
    identity: str | None = client._engines.get(rank)
    return identity


@uses_private_name(
    "ipyparallel.Client()._control_stream",
    "ipyparallel.Client._send",
    oldest_promised="ipyparallel 9.2",
    lost="the kernel cannot ask ranks where they are while they run a cell, so a deadlock hangs",
)
def send_control(
    client: Client, identity: str, request: str, content: dict[str, Any]
) -> Future[Any]:
    """
    Send a request on the control channel, which an engine answers while it runs a cell.

    ipyparallel's own control requests are abort, shutdown and signals.

    Args:
        client: The Client.
        identity: The engine (see `identity_of`).
        request: The type of the message, for which the engine has a handler.
        content: Its content.
    """
    reply: Future[Any] = client._send(
        client._control_stream, request, content=content, ident=identity.encode()
    )
    return reply


@uses_private_name(
    "ipyparallel.Client()._query_stream",
    "ipyparallel.Client._send",
    oldest_promised="ipyparallel 9.2",
    lost="the controller hears of a rank's death by its heartbeat alone, seconds later",
)
def report_death(client: Client, rank: int) -> None:
    """
    Tell the controller that a rank's process has ended, so that its number is free again.
    """
    client._send(client._query_stream, "unregistration_request", content={"id": rank})


@uses_private_name(
    "ipyparallel.Client()._io_loop",
    oldest_promised="ipyparallel 9.2",
    lost="cells cannot be sent to ranks",
)
def run_in_client_thread(client: Client, function: Callable[..., object], *args: object) -> None:
    """
    Call a function in the client's thread, soon. Its sockets are used by that thread alone.
    """
    client._io_loop.add_callback(function, *args)


@uses_private_name(
    "ipyparallel.Client()._io_thread",
    oldest_promised="ipyparallel 9.2",
    lost="a cell that is sent while the client closes waits for ever",
)
def client_thread_is_alive(client: Client) -> bool:
    """
    Return whether the client's thread still runs, so that what is given to it will be done.
    """
    return bool(client._io_thread.is_alive())


@uses_private_name(
    "ipyparallel.Client()._mux_stream",
    oldest_promised="ipyparallel 9.2",
    lost="cells cannot be sent to ranks",
)
def cell_stream(client: Client) -> ZMQStream:
    """
    Return the stream of the shell channel, on which cells go to engines and replies come back.
    """
    stream: ZMQStream = client._mux_stream
    return stream


@uses_private_name(
    "ipyparallel.Client()._outstanding_dict",
    "ipyparallel.Client()._engines",
    oldest_promised="ipyparallel 9.2",
    lost="`ranks.status()` cannot say which ranks are busy",
)
def has_unanswered_requests(client: Client, rank: int) -> bool:
    """
    Return whether a rank has not replied to all requests of this client.
    """
    return bool(client._outstanding_dict[client._engines.get(rank)])


@uses_private_name(
    "ipyparallel.Client()._notification_handlers",
    oldest_promised="ipyparallel 9.2",
    lost="a message cannot say that a rank's host does not answer",
)
def notification_handlers(client: Client) -> dict[str, Callable[[dict[str, Any]], None]]:
    """
    Return the client's handlers of what the controller reports: type of the message -> handler.

    A change of the dictionary takes effect at the next message.
    """
    handlers: dict[str, Callable[[dict[str, Any]], None]] = client._notification_handlers
    return handlers


@uses_private_name(
    "ipyparallel.Client()._queue_handlers",
    oldest_promised="ipyparallel 9.2",
    lost="a view that returns an object of a class that only ranks know waits for ever",
)
def reply_handlers(client: Client) -> dict[str, Callable[[dict[str, Any]], None]]:
    """
    Return the client's handlers of engines' replies: type of the message -> handler.
    """
    handlers: dict[str, Callable[[dict[str, Any]], None]] = client._queue_handlers
    return handlers


@uses_private_name(
    "ipyparallel.Client()._futures",
    oldest_promised="ipyparallel 9.2",
    lost="a view that returns an object of a class that only ranks know waits for ever",
)
def end_request(client: Client, request: str, result: object) -> None:
    """
    End a request with a result of our own: it raises where the result is an ipyparallel error.

    Args:
        client: The Client.
        request: The id of the request's message.
        result: The result.
    """
    client.results[request] = result
    client._futures[request].set_result(result)


@uses_private_name(
    "ipyparallel.DirectView()._socket",
    oldest_promised="ipyparallel 9.2",
    lost="views of some of the ranks cannot be made",
)
def socket_of_view(view: DirectView) -> ZMQStream:
    """
    Return the stream of a DirectView.
    """
    stream: ZMQStream = view._socket
    return stream


@uses_private_name(
    "ipyparallel.client.client.ExecuteReply()._content",
    oldest_promised="ipyparallel 9.2",
    lost="the kernel cannot read a rank's report on its cell, so that every cell fails",
)
def content_of(reply: ExecuteReply) -> dict[str, Any]:
    """
    Return the whole content of a cell's reply: ipyparallel shows some of its entries only.
    """
    content: dict[str, Any] = reply._content
    return content
