"""
Who is on the board: each with a name, a secret token, and the last state that they have sent.

    class.json        the class code, which lets learners in, and the teacher's own token
    rows/<row>.json   one learner: a name, a digest of their token, their state
    removed.json      rows that the teacher has removed today

A row is on the disk before its sender is answered, so a board that is killed has lost nothing. What
nobody has sent to for a day is deleted.
"""

import fcntl
import hashlib
import hmac
import json
import secrets
import shutil
import time
from pathlib import Path

from ddp_lessons.board.columns import Row
from ddp_lessons.board.names import LONGEST_NAME, Denied, name_of
from ddp_lessons.board.rate_limit import WrongCodes
from ddp_lessons.board.removed_rows import Removed
from ddp_lessons.errors import BadInput
from ddp_lessons.files import replace_text
from ddp_lessons.progress import state

KEPT_S = 24 * 3600
"""
Seconds after which a row is deleted that nobody has sent to.
"""
MOST_PEOPLE = 300
SHORTEST_TOKEN = 32
_USER = "user of the hub: "  # which no token begins with: there are no spaces in them
_LOGIN = " (login)"
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"  # no vowel, so that a code is no word
CODE_LETTERS = 6


class People:
    """
    Hold everybody who is on the board, and keep them in a folder that only this user can read.

    Args:
        folder: The folder. It is made if it is not there.
        clock: Function that returns seconds since 1970.

    Raises:
        BadInput: Another board has it, or a file in it cannot be read.
    """

    def __init__(self, folder, clock=time.time):
        self.folder = Path(folder)
        self._clock = clock
        self._rows_folder = self.folder / "rows"
        self._wrong_codes = WrongCodes(clock)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._lock = _lock(self.folder)
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def _read(self):
        self._rows_folder.mkdir(exist_ok=True)
        path = self.folder / "class.json"
        if not path.exists():
            code = "".join(secrets.choice(LETTERS) for _ in range(CODE_LETTERS))
            replace_text(path, json.dumps({"code": code, "teacher": secrets.token_urlsafe(24)}))
        told = _read(path)
        self.code, self.teacher = told["code"], told["teacher"]
        self._people = {path.stem: _read(path) for path in self._rows_folder.glob("*.json")}
        removed = self.folder / "removed.json"
        self._removed = Removed(removed, _read(removed) if removed.exists() else {})
        self.forget_the_old()

    def close(self):
        """
        Let another board have the folder.
        """
        self._lock.close()

    def rows(self):
        """
        Return a Row for everybody, in no order.
        """
        return [
            Row(one["name"], one["state"], one["heard_s"], one["ahead_s"], key=row)
            for row, one in list(self._people.items())
        ]

    def knows(self, token):
        """
        Tell whether a token is somebody's.
        """
        return _digest(token) in self._people

    def let_in(self, token, name, code, address=""):
        """
        Give somebody a row, or the one that they have another name.

        Args:
            token: Their secret. Who knows it can write the row.
            name: The name that they chose.
            code: The class code, as they typed it.
            address: Where they send from. Wrong codes are counted by it.

        Raises:
            Denied: The code is wrong, or the name is taken, none, or that of a row that the teacher
                has removed.
        """
        self._refuse_a_wrong_code(str(code), address)
        if len(token) < SHORTEST_TOKEN:
            raise Denied(f"a token of {SHORTEST_TOKEN} characters or more is expected")
        self._let_in(_digest(token), name_of(name))

    def put(self, token, told, sent_s):
        """
        Replace somebody's state.

        Args:
            token: Their secret.
            told: The state, as parsed from JSON.
            sent_s: When they sent it, by their own clock.

        Raises:
            Denied: Nobody has this token, it is no state, or the teacher has removed the row.
        """
        row = _digest(token)
        self._refuse_removed(row)
        if row not in self._people:
            raise Denied("nobody has this token; join with the class code", 401)
        self._put(row, self._people[row]["name"], told, sent_s)

    def put_user(self, user, told, sent_s):
        """
        Replace the state of a user whom a hub vouches for; they need not have joined.

        Until they choose a name, it is their login; where somebody has taken that, it says so.
        """
        row = _digest(_USER + user)
        self._refuse_removed(row)
        if row in self._people:
            name = self._people[row]["name"]
        else:
            name = name_of(user[:LONGEST_NAME])
            if self._is_taken(name, row):
                name = name_of(f"{user[: LONGEST_NAME - len(_LOGIN)]}{_LOGIN}")
        self._put(row, name, told, sent_s)

    def let_in_user(self, user, name):
        """
        Give a user whom a hub vouches for the name that they have chosen.

        Raises:
            Denied: It is taken, none, or that of their row that the teacher has removed.
        """
        self._let_in(_digest(_USER + user), name_of(name))

    def remove(self, token):
        """
        Delete somebody's row.
        """
        self._delete(_digest(token))

    def remove_user(self, user):
        """
        Delete the row of a user whom a hub vouches for.
        """
        self._delete(_digest(_USER + user))

    def take_off(self, row):
        """
        Remove somebody's row, as the teacher does. It comes back by no sending, only by a new name.

        Args:
            row: The Row's key.

        Returns:
            bool: Whether it was there.
        """
        if row not in self._people:
            return False
        self._removed.note(row, self._people[row]["name"], self._clock())
        self._delete(row)
        return True

    def forget_the_old(self):
        """
        Delete the rows that nobody has sent to for a day.
        """
        oldest_s = self._clock() - KEPT_S
        for row in [row for row, one in self._people.items() if one["heard_s"] < oldest_s]:
            self._delete(row)
        self._removed.forget_before(oldest_s)

    def _delete(self, row):
        if self._people.pop(row, None) is not None:
            (self._rows_folder / f"{row}.json").unlink(missing_ok=True)

    def _let_in(self, row, name):
        if self._removed.has(row, name):
            self._refuse_removed(row)
        self._put(row, name, None, self._clock())
        self._removed.forget(row)

    def _refuse_removed(self, row):
        if row in self._removed:
            raise Denied("the teacher has removed this row; join under another name")

    def _put(self, row, name, told, sent_s):
        if self._is_taken(name, row):
            raise Denied("this name is taken; choose another one", 409)
        if row not in self._people and len(self._people) >= MOST_PEOPLE:
            raise Denied(f"the board is full: {MOST_PEOPLE} rows", 409)
        known = self._people.get(row, {"state": state.blank(), "ahead_s": 0.0})
        now_s = self._clock()
        one = {
            "name": name,
            "state": known["state"] if told is None else _state(told),
            "heard_s": now_s,
            "ahead_s": known["ahead_s"] if told is None else now_s - sent_s,
        }
        replace_text(self._rows_folder / f"{row}.json", json.dumps(one))
        self._people[row] = one

    def _is_taken(self, name, row):
        others = (one["name"] for key, one in self._people.items() if key != row)
        return name.casefold() in map(str.casefold, others)

    def _refuse_a_wrong_code(self, code, address):
        if self._wrong_codes.are_too_many(address):
            raise Denied("too many wrong codes from your address; wait a minute", 429)
        if not hmac.compare_digest(code.strip().upper().encode(), self.code.encode()):
            self._wrong_codes.note(address)
            raise Denied("the code is not the one that the board shows")


def delete_everything(folder):
    """
    Delete all that boards have kept, and return how many rows that were.

    Raises:
        BadInput: A board is running.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return 0
    with _lock(folder):
        num_rows = len(list(folder.glob("rows/*.json")))
        shutil.rmtree(folder)
    return num_rows


def kept_rows(folder):
    """
    Return the Rows that were kept, also while a board is running.
    """
    told = [_read(path) for path in sorted(Path(folder).glob("rows/*.json"))]
    return [Row(one["name"], one["state"], one["heard_s"], one["ahead_s"]) for one in told]


def _state(told):
    try:
        return state.parse(json.dumps(told))
    except state.Unreadable as error:
        raise Denied(f"that is no state: {error}", 400) from None


def _digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


def _lock(folder):
    lock = open(folder / "lock", "w")  # noqa: SIM115 - held as long as the board runs
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise BadInput(
            "A board is running already: one at a time is expected (got another one that keeps "
            "its rows in the same folder). End that one first, or set DDP_LESSONS_STATE_DIR."
        ) from None
    return lock


def _read(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"Cannot read what the board has kept: expected JSON in {path} (got {error}). "
            "Move the file away, or run `ddp-lessons board --delete`."
        ) from error
