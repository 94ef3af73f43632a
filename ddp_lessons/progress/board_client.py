"""
Whether this learner is on a class board, and how to talk to it. Who has not joined sends nothing.

What is known of the board is in a file beside the learner's state, which only they can read: it
holds their token. Under a hub, its configuration says where the board is, and the hub's own token
says who sends: nobody has to join.
"""

import contextlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass

from ddp_lessons.progress import state

URL_VARIABLE = "DDP_LESSONS_BOARD_URL"
_HUB_TOKEN = "JUPYTERHUB_API_TOKEN"
_FILE = "board.json"
_WITHIN_S = 3.0
_FOR_A_WHILE = (429, 500, 502, 503, 504)  # too many at once, or a proxy before a board that is down
_MOST_BYTES = 10_000  # of an answer
_DONE = b"done"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
UNREACHABLE = (OSError, http.client.HTTPException)
"""
What a board that is down, or no board at all, ends in.
"""


class Refused(Exception):
    """
    The board is there and says no. The message says why.
    """


class Stranger(Refused):
    """
    The board does not know this token: not yet, or no more.
    """


@dataclass(frozen=True)
class Membership:
    """
    Hold where a learner's row is, and what lets them write it.

    Args:
        url: The board's address. Empty: this learner has left, and is to be left alone.
        name: The name that they chose.
        code: The class code, as the board shows it. Empty under a hub.
        token: What lets them write their row, and no other: a secret of their own, which the board
            learns when they join. So to join twice is to join once.
        is_left: Whether this learner has left, and the board may not have heard of it.
        secret: What tokens are made of, one for each address. No board learns it.
    """

    url: str
    name: str = ""
    code: str = ""
    token: str = ""
    is_left: bool = False
    secret: str = ""

    def join(self):
        """
        Ask to be let in.

        Raises:
            Refused: The board says no.
            OSError or HTTPException: It does not answer.
        """
        self._ask("POST", "api/join", {"name": self.name, "code": self.code})

    def leave(self):
        """
        Have the row deleted.
        """
        self._ask("DELETE", "api/row")

    def send(self, told):
        """
        Send the whole state; what was sent before is replaced. Join if the board does not know us.
        """
        whole = {"state": told, "sent_s": time.time()}
        try:
            self._ask("PUT", "api/row", whole)
        except Stranger:
            if not self.code or self.is_superseded():
                raise
            self.join()
            self._ask("PUT", "api/row", whole)

    def is_superseded(self):
        """
        Whether this learner has left the board since, or joined anew, perhaps in another notebook.
        """
        known = saved()
        return known is not None and known != self

    def save(self):
        """
        Remember it for the other notebooks of this learner, and for tomorrow.
        """
        path = state.state_folder() / _FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{_FILE}.{os.getpid()}.new")
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
        new.replace(path)

    def _ask(self, method, path, told=None):
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/{path}",
            data=None if told is None else json.dumps(told).encode(),
            method=method,
            headers={"Content-Type": "application/json", "Authorization": f"token {self.token}"},
        )
        host = urllib.parse.urlsplit(self.url).hostname
        # A proxy that the environment names does not lead to this machine.
        near = [urllib.request.ProxyHandler({})] if host in _LOOPBACK else []
        try:
            with urllib.request.build_opener(*near).open(request, timeout=_WITHIN_S) as answer:
                text = answer.read(_MOST_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _FOR_A_WHILE:
                    raise
                kind = Stranger if error.code == http.client.UNAUTHORIZED else Refused
                raise kind(_reason(error)) from None
        if text != _DONE:
            raise Refused("what answers there is no class board")


def _reason(error):
    with contextlib.suppress(ValueError, KeyError, TypeError, *UNREACHABLE):
        return str(json.loads(error.read(_MOST_BYTES))["error"])
    return f"it answers {error.code}, as a class board does not"


def membership():
    """
    Return the membership of this learner, or None.
    """
    known = saved()
    if known is None:
        return of_the_hub()
    return known if known.url and not known.is_left else None


def saved():
    """
    Return the Membership that was saved last, also that of one who has left; None without any.
    """
    try:
        told = json.loads((state.state_folder() / _FILE).read_text(encoding="utf-8"))
        return Membership(**told)
    except (OSError, ValueError, TypeError):
        return None  # not joined by hand


def of_the_hub(name=""):
    """
    Return the membership that a hub's configuration gives this learner, or None.

    Args:
        name: The name that they choose.
    """
    url, token = os.environ.get(URL_VARIABLE), os.environ.get(_HUB_TOKEN)
    return Membership(url, name, token=token) if url and token else None


def forget():
    """
    Forget what was saved: then what a hub's configuration says holds again.
    """
    (state.state_folder() / _FILE).unlink(missing_ok=True)
