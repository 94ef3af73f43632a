"""
The server of the board, which listens until Ctrl-C or a signal ends it.
"""

import asyncio
import os
import secrets
import signal
import socket

import tornado.httpserver
from tornado.ioloop import PeriodicCallback

from ddp_lessons.course.classroom.board.app import MOST_BYTES, make_app
from ddp_lessons.course.classroom.board.board import ClassBoard
from ddp_lessons.course.classroom.board.roster import People
from ddp_lessons.errors import StartFailed
from ddp_lessons.progress import state

USUAL_PORT = 8642
_LOOK_AGAIN_MS = 2000
_FORGET_EVERY_MS = 3_600_000
_EVERYWHERE = ("", "0.0.0.0", "::")


def is_service():
    """
    Tell whether a JupyterHub has started this process as a service, and not as a learner's server.
    """
    return bool(os.environ.get("JUPYTERHUB_SERVICE_NAME"))


def kept_folder():
    """
    Return the folder in which a board of this user keeps its rows.
    """
    return state.state_folder() / "board"


def serve(columns, *, host="127.0.0.1", port=USUAL_PORT, source=None, say=print):
    """
    Serve a board that learners join with the class code, or one that shows the rows of a source.

    Args:
        columns: List of Columns.
        host: The address to listen on; "0.0.0.0" for all addresses of this machine.
        port: The port to listen on; 0 for any free port.
        source: Object with a method `rows()`, which is called every 2 s; learners cannot send then.
            None: learners send their states.
        say: Function that is called with the lines to print, such as the address of the page.

    Raises:
        StartFailed: The port is taken, or the host is no address of this machine.
        BadInput: Another board is running, or the stored data cannot be read.
    """
    if source is not None:
        asyncio.run(_serve_source(columns, host, port, source, say))
        return
    people = People(kept_folder())
    try:
        asyncio.run(_serve_people(columns, host, port, people, say))
    finally:
        people.close()


def serve_for_hub(read_columns, say=print):
    """
    Serve a board as a service of the JupyterHub that has started this process.

    If an older board still uses the folder, wait until that board has ended. If this one exited,
    the older one would keep the port, and a new hub does not accept the older board's secret.

    Args:
        read_columns: Function that returns the Columns. It may be slow, so it is called after the
            server listens: the hub gives up on a service that does not listen soon.
        say: Function that is called with the lines to print, such as the path of the board.
    """
    people = People(kept_folder(), say=say)
    try:
        asyncio.run(_serve_hub(read_columns, people, say))
    finally:
        people.close()


async def _serve_source(columns, host, port, source, say):
    secret, board = secrets.token_urlsafe(24), ClassBoard(columns, sources=[source])
    server, port = _listen(make_app(board, secret, log_function=_log_nothing), host, port)
    say(f"the board: {_address(host, port)}/?token={secret}")
    await _until_ended(server, board)


async def _serve_people(columns, host, port, people, say):
    board = ClassBoard(columns, people)
    app = make_app(board, people.teacher, log_function=_log_nothing)
    server, port = _listen(app, host, port)
    board.address = _address(host, port)
    say(f"the board: {board.address}/?token={people.teacher}")
    say(f"the class code: {people.code}")
    await _until_ended(server, board, people)


async def _serve_hub(read_columns, people, say):
    from ddp_lessons.course.classroom.board import (
        hub_service,  # the only module that needs jupyterhub
    )

    service, board = hub_service.Hub(), ClassBoard([], people)
    # A stored secret keeps the teacher logged in when the board is started again.
    own = {"cookie_secret": people.teacher, "log_function": _log_nothing}
    app = make_app(board, people.teacher, service.prefix, service, hub_service.paths(), **own)
    server, _ = _listen(app, service.host, service.port)
    say(f"the board: {service.prefix}, by the hub")
    board.columns = await asyncio.get_running_loop().run_in_executor(None, read_columns)
    board.changed()
    await _until_ended(server, board, people)


def _listen(app, host, port):
    """
    Make an application listen, and return its server and its port.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise StartFailed(
            f"The board cannot listen: a free port of this machine is expected (got {host} "
            f"{port}: {error.strerror}). Take another one with --port, or 0 for any; under a hub, "
            "in the service's url."
        ) from error
    listening.setblocking(False)
    server = tornado.httpserver.HTTPServer(app, max_body_size=MOST_BYTES)
    server.add_socket(listening)
    return server, listening.getsockname()[1]


async def _until_ended(server, board, people=None):
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    # A folder does not report its changes, so pages are updated again and again.
    again = [PeriodicCallback(board.changed, _LOOK_AGAIN_MS)] if people is None else []
    if people is not None:
        again.append(PeriodicCallback(people.forget_the_old, _FORGET_EVERY_MS))
    for one in again:
        one.start()
    await ended.wait()
    server.stop()  # so that the port is free before the folder is, for which a new board may wait
    await board.end()


def _address(host, port):
    if host in _EVERYWHERE:
        host = _own_address()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _own_address():
    # This sends nothing. It makes the system choose the address from which it would send.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        return asking.getsockname()[0]


def _log_nothing(handler):
    pass  # an address may hold the teacher's secret
