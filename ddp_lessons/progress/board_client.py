"""
A learner's membership of a class board, and requests to it. Before joining, nothing is sent.

The membership is in a file beside the learner's state, which only the learner can read, because it
holds the learner's token. Under a hub, the hub's configuration names the board's address, and the
hub's own token identifies the learner. So a learner need not join.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ddp_lessons.progress import state

URL_VARIABLE = "DDP_LESSONS_BOARD_URL"
_HUB_TOKEN = "JUPYTERHUB_API_TOKEN"
_FILE = "board.json"
_WITHIN_S = 3.0
_FOR_A_WHILE = (429, 500, 502, 503, 504)  # too many requests, or a proxy whose board is down
_MOST_BYTES = 10_000  # largest answer of the board
_DONE = b"done"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
UNREACHABLE = (OSError, http.client.HTTPException)
"""
Exceptions of a request if the board is down, or there is no board.
"""


class Refused(Exception):
    """
    The board has refused a request. The message says why.
    """


class Stranger(Refused):
    """
    The board does not know this token yet, or no longer knows it.
    """


@dataclass(frozen=True)
class Membership:
    """
    The address of a board, and the token with which a learner can write a row there.

    Args:
        url: The board's address. Empty: this learner has left, and nothing must be sent.
        name: The name that the learner chose.
        code: The class code, as the board shows it. Empty under a hub.
        token: The learner's secret, which gives write access to the learner's row only. The board
            gets the token when the learner joins. Joining twice with it makes only one row.
        is_left: Whether this learner has left, and the board may not know that yet.
        secret: The secret from which a token is made for each address. No board gets it.
    """

    url: str
    name: str = ""
    code: str = ""
    token: str = ""
    is_left: bool = False
    secret: str = ""

    def join(self) -> None:
        """
        Ask the board for a row.

        Raises:
            Refused: The board does not allow it.
            OSError or HTTPException: The board does not answer.
        """
        self._ask("POST", "api/join", {"name": self.name, "code": self.code})

    def leave(self) -> None:
        """
        Ask the board to delete the row.
        """
        self._ask("DELETE", "api/row")

    def send(self, told: Mapping[str, object]) -> None:
        """
        Send the whole state, which replaces the earlier one. Join if the token is unknown.
        """
        whole = {"state": told, "sent_s": time.time()}
        try:
            self._ask("PUT", "api/row", whole)
        except Stranger:
            if not self.code or self.is_superseded():
                raise
            self.join()
            self._ask("PUT", "api/row", whole)

    def is_superseded(self) -> bool:
        """
        Tell whether this learner has left or joined again meanwhile, perhaps in another notebook.
        """
        known = saved()
        return known is not None and known != self

    def save(self) -> None:
        """
        Write the membership into the learner's file, for other notebooks and later kernels.
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
        # A proxy of the environment cannot reach a board on this machine's loopback interface.
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


def membership() -> Membership | None:
    """
    Return the membership of this learner, or None.
    """
    known = saved()
    if known is None:
        return of_the_hub()
    return known if known.url and not known.is_left else None


def saved() -> Membership | None:
    """
    Return the Membership that was saved last, even if the learner has left; None without any.
    """
    try:
        told = json.loads((state.state_folder() / _FILE).read_text(encoding="utf-8"))
        return Membership(**told)
    except (OSError, ValueError, TypeError):
        return None  # not joined by hand


def of_the_hub(name: str = "") -> Membership | None:
    """
    Return the membership that a hub's configuration gives this learner, or None.

    Args:
        name: The name that the learner chooses.
    """
    url, token = os.environ.get(URL_VARIABLE), os.environ.get(_HUB_TOKEN)
    return Membership(url, name, token=token) if url and token else None


def forget() -> None:
    """
    Delete the saved membership, so that the hub's configuration applies again.
    """
    (state.state_folder() / _FILE).unlink(missing_ok=True)
