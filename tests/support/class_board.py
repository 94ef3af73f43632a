"""
A class board for tests: made-up columns, rows written by hand, and a server in a thread.
"""

import asyncio
import http.client
import json
import threading
import time
import urllib.parse

import tornado.httpserver
import tornado.netutil
from waiting import HANGS_AFTER_S

from ddp_lessons.course.classroom.board.app import MOST_BYTES, make_app
from ddp_lessons.course.classroom.board.board import ClassBoard
from ddp_lessons.course.classroom.board.columns import Column, Row
from ddp_lessons.progress import state

COLUMNS = [
    Column("section", "lines", "00_ranks", "00/1", "Who answers?", "How many lines will you see?"),
    Column("task", "00.1", "00_ranks", "00.1", "my_items", hints={"view": "Work on a copy."}),
    Column("task", "02.1", "02_collectives", "02.1", "all_reduce", hints={"late": "Count."}),
]
TOKEN = "t" * 40
NOW_S = 1_790_000_000


def tried(*mistakes, last_s=NOW_S, every_s=60, hints=0):
    """
    Return the row of a task, with one try for each mistake. None stands for a try that passed.
    """
    first_s = last_s - every_s * (len(mistakes) - 1)
    tries = [{"at_s": first_s + every_s * n, "mistake": one} for n, one in enumerate(mistakes)]
    solved = [one["at_s"] for one in tries if one["mistake"] is None]
    return {
        "checks": len(mistakes),
        "is_passed": bool(solved),
        "hints": hints,
        "tries": tries[-5:],
        "hint_s": None,
        "solved_s": solved[0] if solved else None,
        "solved_version": "0.1.0" if solved else None,
    }


def predicted(before=None, was=None, at_s=NOW_S):
    """
    Return the row of a prediction.

    Args:
        before: The prediction, or None.
        was: The value that the run gave, or None.
        at_s: Seconds since 1970 for both.
    """
    said_s = None if before is None else at_s
    was_s = None if was is None else at_s
    numbers = {"said": before, "first": before, "before": before, "was": was}
    return {**numbers, "said_s": said_s, "was_s": was_s}


def state_of(tasks=None, predictions=None):
    """
    Return a learner's state with these tasks and predictions.
    """
    return state.blank() | {"tasks": tasks or {}, "predictions": predictions or {}}


def row(name="Ada", tasks=None, predictions=None, **more):
    """
    Return a Row of the board.
    """
    return Row(name, state_of(tasks, predictions), heard_s=NOW_S, **more)


class BoardThread:
    """
    A board's server in a thread of this process. Use it in a `with`.

    Args:
        people: The People, or None.
        port: The port; 0 for any free port.
        sources: The board's other sources of rows.
        secret: The teacher's secret in the board's address.
        clock: Function that returns seconds since 1970.
        more: Further arguments of `make_app`.
    """

    def __init__(
        self, people=None, port=0, sources=(), secret="the-teachers", clock=time.time, **more
    ):
        self.people, self.secret = people, secret
        self._wanted, self._sources, self._more = port, sources, more
        self._clock = clock
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(HANGS_AFTER_S)
        return self

    def __exit__(self, *error):
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(HANGS_AFTER_S)
        assert not self._thread.is_alive()

    @property
    def url(self):
        """
        The board's address.
        """
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self):
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self.board = ClassBoard(COLUMNS, self.people, self._sources, clock=self._clock)
        more = {"log_function": lambda handler: None, **self._more}
        app = make_app(self.board, self.secret, **more)
        sockets = tornado.netutil.bind_sockets(self._wanted, address="127.0.0.1")
        server = tornado.httpserver.HTTPServer(app, max_body_size=MOST_BYTES)
        server.add_sockets(sockets)
        self.port = sockets[0].getsockname()[1]
        self.board.address = self.url
        self._ready.set()
        await self._ended.wait()
        server.stop()
        await self.board.end()
        await server.close_all_connections()

    def ask(self, method, path, told=None, token=None, cookie=None):
        """
        Send a request to the board, and return (status, text, headers).
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANGS_AFTER_S)
        headers = {} if token is None else {"Authorization": f"token {token}"}
        if cookie is not None:
            headers["Cookie"] = f"ddp_lessons_board={cookie}"
        body = told if told is None or isinstance(told, bytes) else json.dumps(told)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()

    def join(self, name="Ada", token=TOKEN, code=None):
        """
        Join the board as a learner does, and return the HTTP status.
        """
        told = {"name": name, "code": self.people.code if code is None else code}
        return self.ask("POST", "/api/join", told, token)[0]

    def put(self, told, token=TOKEN, sent_s=NOW_S):
        """
        Send a learner's state to the board, and return the HTTP status.
        """
        return self.ask("PUT", "/api/row", {"state": told, "sent_s": sent_s}, token)[0]


def port_of(url):
    """
    Return the port of an address.
    """
    return urllib.parse.urlsplit(url).port
