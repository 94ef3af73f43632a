"""
The web application of the board: the teacher's page, its events, and what learners send.

    GET  /             the page                     the teacher's
    GET  /events       what it shows, as it changes the teacher's
    GET  /board.csv    the same for a spreadsheet   the teacher's
    DELETE /rows/<key> remove a row                 the teacher's
    POST /api/join     {"name", "code"}             with a token of the learner's own
    PUT  /api/row      {"state", "sent_s"}          with that token, or with a hub's
    DELETE /api/row                                 with that token
"""

import asyncio
import contextlib
import hmac
import json
from pathlib import Path

import tornado.iostream
import tornado.web

from ddp_lessons.board import csv_table
from ddp_lessons.board.board import AGAIN_S
from ddp_lessons.board.names import Denied
from ddp_lessons.progress.row_fields import is_time

PAGE = Path(__file__).parent / "page"
MOST_BYTES = 256 * 1024
"""
So long may be what a learner sends.
"""
_GATHER_S = 0.2  # what thirty learners send at once is drawn once
_MOST_STREAMS = 64
_COOKIE = "ddp_lessons_board"
_ROW = r"rows/([0-9a-f]{64})"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Server": "ddp-lessons",
}


class Handler(tornado.web.RequestHandler):
    """
    Hold what all answers share.
    """

    def set_default_headers(self):
        """
        Let a page load nothing from elsewhere, and nobody keep it.
        """
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    @property
    def board(self):
        """
        The Board.
        """
        return self.settings["board"]

    def write_error(self, status_code, **kwargs):
        """
        Say what is wrong in one line of JSON, without a traceback.
        """
        error = kwargs.get("exc_info", (None, None, None))[1]
        said = getattr(error, "log_message", None) or self._reason
        self.finish({"error": said})

    def refuse(self, error):
        """
        Answer with what was denied, and why.
        """
        self.set_status(error.status)
        self.finish({"error": str(error)})

    def sent(self):
        """
        Return the object that came as JSON.
        """
        try:
            told = json.loads(self.request.body)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise Denied("an object in JSON is expected", 400)
        return told

    def token(self):
        """
        Return the token that came along, or nothing.
        """
        kind, _, token = self.request.headers.get("Authorization", "").partition(" ")
        return token.strip() if kind.lower() in ("token", "bearer") else ""


class TeachersHandler(Handler):
    """
    Answer the teacher only: whoever has opened the address with the secret that was printed.
    """

    def prepare(self):
        """
        Take the secret out of the address into a cookie, so that no projector shows it.
        """
        people, secret = self.board.people, self.settings["secret"]
        given = self.get_query_argument("token", None)
        if given is not None and hmac.compare_digest(given.encode(), secret.encode()):
            self.set_cookie(_COOKIE, secret, httponly=True, samesite="Lax")
            self.redirect(self.settings["prefix"])
        elif not hmac.compare_digest(self.get_cookie(_COOKIE, "").encode(), secret.encode()):
            which = "that `ddp-lessons board` has printed" if people else "that was printed"
            self.set_status(403)
            self.finish(f"This page is the teacher's. Open the address {which}.")


class PageHandler(TeachersHandler):
    """
    Give the page.
    """

    def get(self):
        """
        It is a file.
        """
        self.set_header("Content-Type", "text/html; charset=UTF-8")
        self.finish((PAGE / "index.html").read_bytes())


class CsvHandler(TeachersHandler):
    """
    Give all that is known as a table.
    """

    def get(self):
        """
        To be saved, not to be looked at.
        """
        self.set_header("Content-Type", "text/csv; charset=UTF-8")
        self.set_header("Content-Disposition", 'attachment; filename="board.csv"')
        self.finish(csv_table.csv_text(self.board.columns, self.board.rows()))


class EventsHandler(TeachersHandler):
    """
    Send what the page shows whenever it changes: server-sent events, which browsers take up again.
    """

    async def get(self):
        """
        Stay until the page is closed.
        """
        if self.board.num_streams >= _MOST_STREAMS:
            raise tornado.web.HTTPError(503, "too many pages are open")
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        self.board.num_streams += 1
        try:
            await self._tell()
        except tornado.iostream.StreamClosedError:
            pass  # the page was closed
        finally:
            self.board.num_streams -= 1

    async def _tell(self):
        last = None
        while not self.board.is_over:
            tick = self.board.tick
            told = self.board.told()
            self.write(f"data: {told}\n\n" if told != last else ": still here\n\n")
            await self.flush()
            last = told
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(tick.wait(), AGAIN_S)
            await asyncio.sleep(_GATHER_S)


class RemoveHandler(TeachersHandler):
    """
    Remove a row.

    No page of elsewhere can have the teacher's browser do it: before it sends a DELETE there, it
    asks whether that is allowed, and nobody says so.
    """

    def delete(self, key):
        """
        A row that is gone already is gone.
        """
        if self.board.people is None:
            raise tornado.web.HTTPError(404, "the rows of this board are not its own")
        if self.board.people.take_off(key):
            self.board.changed()
        self.finish("done")


class JoinHandler(Handler):
    """
    Let learners in who know the class code.
    """

    async def post(self):
        """
        Who joins twice with the same token has joined once. Under a hub, no code is asked for.
        """
        people, hub = self.board.people, self.settings["hub"]
        try:
            told = self.sent()
            if hub is None:
                code, address = told.get("code", ""), self.request.remote_ip
                people.let_in(self.token(), told.get("name", ""), code, address)
            else:
                people.let_in_user(await hub.user(self.token()), told.get("name", ""))
        except Denied as error:
            return self.refuse(error)
        self.board.changed()
        return self.finish("done")


class RowHandler(Handler):
    """
    Take a learner's state. The token says whose it is; nothing else that was sent does.
    """

    async def put(self):
        """
        What comes last replaces what was there.
        """
        try:
            told = self.sent()
            sent_s = told.get("sent_s")
            if not is_time(sent_s):
                raise Denied("the time of sending is expected", 400)
            await self._put(told.get("state"), sent_s)
        except Denied as error:
            return self.refuse(error)
        self.board.changed()
        return self.finish("done")

    async def _put(self, told, sent_s):
        people, hub = self.board.people, self.settings["hub"]
        if hub is None:
            people.put(self.token(), told, sent_s)
        else:
            people.put_user(await hub.user(self.token()), told, sent_s)

    async def delete(self):
        """
        Delete the row of whoever asks.
        """
        people, hub = self.board.people, self.settings["hub"]
        try:
            if hub is None:
                people.remove(self.token())
            else:
                people.remove_user(await hub.user(self.token()))
        except Denied as error:
            return self.refuse(error)
        self.board.changed()
        return self.finish("done")


def teachers_paths(page=PageHandler, csv=CsvHandler, events=EventsHandler, remove=RemoveHandler):
    """
    Return the teacher's paths, below the prefix, and who answers there.

    Args:
        page: The class of the page; `csv`, `events` and `remove` of the others.
    """
    style = (r"page/(board\.css|board\.js)", tornado.web.StaticFileHandler, {"path": PAGE})
    return [("", page), ("board.csv", csv), ("events", events), (_ROW, remove), style]


def make_app(board, secret, prefix="/", hub=None, paths=None, **settings):
    """
    Return the tornado application.

    Args:
        board: The Board.
        secret: What opens the teacher's page.
        prefix: What all paths begin with, such as "/services/board/".
        hub: The Hub that vouches for learners, or None.
        paths: The teacher's, as `teachers_paths` returns them.
        settings: More settings of tornado's.
    """
    paths = list(paths or teachers_paths())
    if board.people is not None:
        paths += [("api/join", JoinHandler), ("api/row", RowHandler)]
    routes = [(prefix + path, *rest) for path, *rest in paths]
    own = {"board": board, "secret": secret, "prefix": prefix, "hub": hub}
    return tornado.web.Application(routes, **own, **settings)
