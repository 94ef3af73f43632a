"""
The roster of the board: each learner with a name, a secret token, and the last state.

    class.json        the class code, with which learners join, and the teacher's own token
    rows/<row>.json   one learner: the name, the login, the state; <row> is a digest of the token
    removed.json      rows that the teacher has removed today

A row is on the disk before its sender gets an answer, so a board that is killed loses nothing. The
board deletes a row that gets no new state for a day.
"""

import fcntl
import hashlib
import hmac
import json
import secrets
import shutil
import time
from pathlib import Path

from ddp_lessons.course.classroom.board.columns import Row
from ddp_lessons.course.classroom.board.names import LONGEST_NAME, Denied, name_of
from ddp_lessons.course.classroom.board.rate_limit import WrongCodes
from ddp_lessons.course.classroom.board.removed_rows import Removed
from ddp_lessons.errors import BadInput
from ddp_lessons.files import replace_text
from ddp_lessons.progress import state

KEPT_S = 24 * 3600
"""
Seconds without a new state after which a row is deleted.
"""
MOST_PEOPLE = 300
SHORTEST_TOKEN = 32
_USER = "user of the hub: "  # no token begins with it, since tokens have no spaces
_LOGIN = " (login)"
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"  # no vowel, so that a code is no word
CODE_LETTERS = 6


class People:
    """
    The learners on the board, stored in a folder that only this user can read.

    Args:
        folder: Path of the folder, which is made if it does not exist.
        clock: Function that returns seconds since 1970.
        say: Function that is called once with a line if another board uses the folder; this board
            then waits until the other one has ended. None: refuse such a folder.

    Raises:
        BadInput: Another board uses the folder, and `say` is None; or a file in the folder cannot
            be read.
    """

    def __init__(self, folder, clock=time.time, say=None):
        self.folder = Path(folder)
        self._clock = clock
        self._rows_folder = self.folder / "rows"
        self._wrong_codes = WrongCodes(clock)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._lock = _lock(self.folder, say)
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
        Unlock the folder, so that another board can use it.
        """
        self._lock.close()

    def rows(self):
        """
        Return a Row for each learner, in no particular order.
        """
        return [_row(one, key) for key, one in list(self._people.items())]

    def knows(self, token):
        """
        Tell whether there is a row for a token.
        """
        return _digest(token) in self._people

    def let_in(self, token, name, code, address=""):
        """
        Create a row for a token, or rename the row that the token has.

        Args:
            token: The learner's secret, which gives write access to the row.
            name: The name that the learner chose.
            code: The class code, as the learner typed it.
            address: Network address of the learner, by which wrong codes are counted.

        Raises:
            Denied: The code is wrong, or the name is taken, invalid, or that of this learner's row
                that the teacher has removed.
        """
        self._refuse_a_wrong_code(str(code), address)
        if len(token) < SHORTEST_TOKEN:
            raise Denied(f"a token of {SHORTEST_TOKEN} characters or more is expected")
        self._let_in(_digest(token), name_of(name))

    def put(self, token, told, sent_s):
        """
        Replace the state in the row of a token.

        Args:
            token: The learner's secret.
            told: The state, as parsed from JSON.
            sent_s: Time of sending by the learner's clock, in seconds since 1970.

        Raises:
            Denied: There is no row for this token, the state is invalid, or the teacher has removed
                the row.
        """
        row = _digest(token)
        self._refuse_removed(row)
        if row not in self._people:
            raise Denied("nobody has this token; join with the class code", 401)
        self._put(row, self._people[row]["name"], told, sent_s)

    def put_user(self, user, told, sent_s):
        """
        Replace the state of a user whom a hub has identified, and who need not have joined.

        Until the user chooses a name, the name is the login. If another learner has taken that
        name, " (login)" is added to it.
        """
        row = _digest(_USER + user)
        self._refuse_removed(row)
        if row in self._people:
            name = self._people[row]["name"]
        else:
            name = name_of(user[:LONGEST_NAME])
            if self._is_taken(name, row):
                name = name_of(f"{user[: LONGEST_NAME - len(_LOGIN)]}{_LOGIN}")
        self._put(row, name, told, sent_s, user)

    def let_in_user(self, user, name):
        """
        Create or rename the row of a user whom a hub has identified.

        Raises:
            Denied: The name is taken, invalid, or that of this user's row that the teacher has
                removed.
        """
        self._let_in(_digest(_USER + user), name_of(name), user)

    def remove(self, token):
        """
        Delete the row of a token.
        """
        self._delete(_digest(token))

    def remove_user(self, user):
        """
        Delete the row of a user whom a hub has identified.
        """
        self._delete(_digest(_USER + user))

    def take_off(self, row):
        """
        Remove a row for the teacher. The learner gets it back only by joining under a new name.

        Args:
            row: The Row's key.

        Returns:
            bool: Whether the row existed.
        """
        if row not in self._people:
            return False
        self._removed.note(row, self._people[row]["name"], self._clock())
        self._delete(row)
        return True

    def forget_the_old(self):
        """
        Delete the rows without a new state for a day.
        """
        oldest_s = self._clock() - KEPT_S
        for row in [row for row, one in self._people.items() if one["heard_s"] < oldest_s]:
            self._delete(row)
        self._removed.forget_before(oldest_s)

    def _delete(self, row):
        if self._people.pop(row, None) is not None:
            (self._rows_folder / f"{row}.json").unlink(missing_ok=True)

    def _let_in(self, row, name, login=""):
        if self._removed.has(row, name):
            self._refuse_removed(row)
        self._put(row, name, None, self._clock(), login)
        self._removed.forget(row)

    def _refuse_removed(self, row):
        if row in self._removed:
            raise Denied("the teacher has removed this row; join under another name")

    def _put(self, row, name, told, sent_s, login=""):
        if self._is_taken(name, row):
            raise Denied("this name is taken; choose another one", 409)
        if row not in self._people and len(self._people) >= MOST_PEOPLE:
            raise Denied(f"the board is full: {MOST_PEOPLE} rows", 409)
        known = self._people.get(row, {"state": state.blank(), "ahead_s": 0.0})
        now_s = self._clock()
        one = {
            "name": name,
            "login": login,
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
    Delete all stored data of boards, and return the number of deleted rows.

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
    Return the Rows that are stored in a folder, even while a board is running.
    """
    return [_row(_read(path)) for path in sorted(Path(folder).glob("rows/*.json"))]


def _row(one, key=""):
    login = one.get("login", "")  # older boards stored none
    login = "" if login == one["name"] else login
    return Row(one["name"], one["state"], one["heard_s"], one["ahead_s"], key=key, login=login)


def _state(told):
    try:
        return state.parse(json.dumps(told))
    except state.Unreadable as error:
        raise Denied(f"that is no state: {error}", 400) from None


def _digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


def _lock(folder, say=None):
    lock = open(folder / "lock", "w")  # noqa: SIM115 - held as long as the board runs
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if say is None:
            lock.close()
            raise BadInput(
                "A board is running already: one at a time is expected (got another one that keeps "
                "its rows in the same folder). End that one first, or set DDP_LESSONS_STATE_DIR."
            ) from None
        say(f"the board waits: another board uses {folder}; `lslocks` shows its process id")
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _read(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"Cannot read what the board has kept: expected JSON in {path} (got {error}). "
            "Move the file away, or run `ddp-lessons board --delete`."
        ) from error
