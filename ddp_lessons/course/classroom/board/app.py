"""
The web application of the board: the teacher's page, its events, and the learners' requests.

    GET  /             the page                            for the teacher
    GET  /events       its contents, after each change     for the teacher
    GET  /board.csv    the same for a spreadsheet          for the teacher
    DELETE /rows/<key> remove a row                        for the teacher
    POST /api/join     {"name", "code"}                    with a token of the learner's own
    PUT  /api/row      {"state", "sent_s"}                 with that token, or with a hub's
    DELETE /api/row    delete the learner's row            with that token, or with a hub's
"""

import asyncio
import contextlib
import hmac
import json
from http import HTTPStatus
from pathlib import Path

import tornado.iostream
import tornado.web

from ddp_lessons.course.classroom.board import csv_table
from ddp_lessons.course.classroom.board.board import AGAIN_S
from ddp_lessons.course.classroom.board.names import Denied
from ddp_lessons.progress.row_fields import is_time

PAGE = Path(__file__).parent / "page"
MOST_BYTES = 256 * 1024
"""
Largest size of a learner's request.
"""
_GATHER_S = 0.2  # changes within this time are sent to pages together
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
    The base of all handlers: headers, errors, and the contents of a request.
    """

    def set_default_headers(self):
        """
        Forbid a page to load anything from other sites, and caches to keep it.
        """
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    @property
    def board(self):
        """
        The ClassBoard.
        """
        return self.settings["board"]

    def write_error(self, status_code, **kwargs):
        """
        Answer with an error as one line of JSON, without a traceback.
        """
        error = kwargs.get("exc_info", (None, None, None))[1]
        said = getattr(error, "log_message", None) or HTTPStatus(status_code).phrase
        self.finish({"error": said})

    def refuse(self, error):
        """
        Answer with the status and the message of a Denied error.
        """
        self.set_status(error.status)
        self.finish({"error": str(error)})

    def sent(self):
        """
        Return the JSON object in the request's body as a dict.
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
        Return the token of the request, or "" if it has none.
        """
        kind, _, token = self.request.headers.get("Authorization", "").partition(" ")
        return token.strip() if kind.lower() in ("token", "bearer") else ""


class TeachersHandler(Handler):
    """
    The base of handlers that answer only the teacher, who has opened the printed secret address.
    """

    def prepare(self):
        """
        Move the secret from the address into a cookie, so that no projector shows it.
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
    The handler of the page.
    """

    def get(self):
        """
        Serve the page, which is a file.
        """
        self.set_header("Content-Type", "text/html; charset=UTF-8")
        self.finish((PAGE / "index.html").read_bytes())


class CsvHandler(TeachersHandler):
    """
    The handler of the board as a CSV table.
    """

    def get(self):
        """
        Serve the table as a file, which the browser saves and does not show.
        """
        self.set_header("Content-Type", "text/csv; charset=UTF-8")
        self.set_header("Content-Disposition", 'attachment; filename="board.csv"')
        self.finish(csv_table.csv_text(self.board.columns, self.board.rows()))


class EventsHandler(TeachersHandler):
    """
    The handler of server-sent events with the page's contents. Browsers reconnect automatically.
    """

    async def get(self):
        """
        Send the contents after each change, until the page is closed.
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
    The handler that removes a row.

    A page of another site cannot make the teacher's browser remove a row. Before such a DELETE, the
    browser asks this server whether it is allowed (a CORS preflight), and gets no permission.
    """

    def delete(self, key):
        """
        Remove a row. A row that is gone already is no error.
        """
        if self.board.people is None:
            raise tornado.web.HTTPError(404, "the rows of this board are not its own")
        if self.board.people.take_off(key):
            self.board.changed()
        self.finish("done")


class JoinHandler(Handler):
    """
    The handler that lets learners with the class code join.
    """

    async def post(self):
        """
        Make a row for a token, or rename the row that it has. Under a hub, no code is needed.
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
    The handler of a learner's row. Only the token of a request identifies the learner.
    """

    async def put(self):
        """
        Replace the state in the learner's row.
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
        Delete the learner's row.
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
    Return the teacher's paths, below the prefix, with their handlers.

    Args:
        page: Handler class of the page.
        csv: Handler class of the CSV table.
        events: Handler class of the server-sent events.
        remove: Handler class that removes a row.
    """
    style = (r"page/(board\.css|board\.js)", tornado.web.StaticFileHandler, {"path": PAGE})
    return [("", page), ("board.csv", csv), ("events", events), (_ROW, remove), style]


def make_app(board, secret, prefix="/", hub=None, paths=None, **settings):
    """
    Return the tornado application.

    Args:
        board: The ClassBoard.
        secret: The secret that opens the teacher's page.
        prefix: Beginning of all paths, such as "/services/board/".
        hub: The Hub that identifies learners, or None.
        paths: The teacher's paths and handlers; default: `teachers_paths()`.
        settings: Further settings of the tornado application.
    """
    paths = list(paths or teachers_paths())
    if board.people is not None:
        paths += [("api/join", JoinHandler), ("api/row", RowHandler)]
    routes = [(prefix + path, *rest) for path, *rest in paths]
    own = {"board": board, "secret": secret, "prefix": prefix, "hub": hub}
    return tornado.web.Application(routes, **own, **settings)
