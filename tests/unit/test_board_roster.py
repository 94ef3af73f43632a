"""
The board's roster: a row belongs to its learner, survives a kill of the board, and is deleted after
a day.
"""

import json
import stat
import threading

import pytest
from class_board import NOW_S, TOKEN, state_of, tried
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.course.classroom.board import roster
from ddp_lessons.course.classroom.board.names import Denied
from ddp_lessons.course.classroom.board.rate_limit import MOST_WRONG_CODES
from ddp_lessons.course.classroom.board.roster import People
from ddp_lessons.errors import BadInput

OTHER = "o" * 40


class Clock:
    """
    A clock that a test sets.
    """

    def __init__(self):
        self.now_s = float(NOW_S)

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    """
    Return a clock that a test sets.
    """
    return Clock()


@pytest.fixture
def room(tmp_path, clock):
    """
    Return the People in the test's own folder.
    """
    found = People(tmp_path / "board", clock)
    yield found
    found.close()


def names(room):
    """
    Return the names on the board, sorted.
    """
    return sorted(row.name for row in room.rows())


def test_who_knows_the_code_gets_a_row(room):
    """
    Everybody who knows the code can join. It is on the projector, so everybody in the room knows
    it.
    """
    room.let_in(TOKEN, " Ada   and Grace ", room.code)
    room.let_in(OTHER, "Bo", room.code.lower())
    assert names(room) == ["Ada and Grace", "Bo"]


def test_who_does_not_know_the_code_gets_none(room):
    """
    A wrong code is refused, so that nobody outside the room can fill the board.
    """
    with pytest.raises(Denied, match="not the one that the board shows"):
        room.let_in(TOKEN, "Ada", "WRONG")
    assert room.rows() == []


def test_codes_cannot_be_guessed_one_after_the_other(room, clock):
    """
    After too many wrong codes an address must wait, because a program would try thousands a minute.
    """
    for _ in range(MOST_WRONG_CODES):
        with pytest.raises(Denied, match="not the one"):
            room.let_in(TOKEN, "Ada", "WRONG", "198.51.100.9")
    with pytest.raises(Denied, match="wait a minute") as denied:
        room.let_in(TOKEN, "Ada", room.code, "198.51.100.9")
    assert denied.value.status == 429
    room.let_in(OTHER, "Bo", room.code, "192.0.2.7")
    clock.now_s += 61
    room.let_in(TOKEN, "Ada", room.code, "198.51.100.9")


def test_to_join_twice_is_to_join_once(room):
    """
    Joining twice gives one row: an answer may be lost, a kernel restarted, or a name corrected.
    """
    room.let_in(TOKEN, "Ada", room.code)
    room.put(TOKEN, state_of({"00.1": tried("view")}), NOW_S)
    room.let_in(TOKEN, "Ada", room.code)
    room.let_in(TOKEN, "Ada L.", room.code)
    (row,) = room.rows()
    assert row.name == "Ada L."
    assert row.state["tasks"]["00.1"]["checks"] == 1


@pytest.mark.parametrize("name", ["Ada", "ADA", " ada "])
def test_a_name_is_given_once(room, name):
    """
    Two learners cannot have one name, because the teacher could not distinguish their rows.
    """
    room.let_in(TOKEN, "Ada", room.code)
    with pytest.raises(Denied, match="taken"):
        room.let_in(OTHER, name, room.code)


@pytest.mark.parametrize("name", ["", "   ", "x" * 41, "A\u202eda", "A\x00da", "A\u200bda"])
def test_a_name_that_cannot_be_shown_is_refused(room, name):
    """
    Names with invisible characters, or with characters that reverse the text, are refused: one name
    could look like another.
    """
    with pytest.raises(Denied, match="a name of"):
        room.let_in(TOKEN, name, room.code)


def test_a_token_that_can_be_guessed_is_refused(room):
    """
    A token that can be guessed is refused, because only the token protects a row.
    """
    with pytest.raises(Denied, match="a token of 32"):
        room.let_in("ada", "Ada", room.code)


def test_a_state_goes_to_the_row_of_its_token_and_no_other(room):
    """
    A state goes to the row of its token. Any name in the state is ignored.
    """
    room.let_in(TOKEN, "Ada", room.code)
    room.let_in(OTHER, "Bo", room.code)
    room.put(OTHER, {**state_of({"00.1": tried("view")}), "name": "Ada"}, NOW_S)
    rows = {row.name: row.state["tasks"] for row in room.rows()}
    assert rows["Ada"] == {}
    assert rows["Bo"]["00.1"]["checks"] == 1
    with pytest.raises(Denied, match="join") as denied:
        room.put("x" * 40, state_of(), NOW_S)
    assert denied.value.status == 401


def test_what_comes_last_replaces_what_was_there(room):
    """
    The last state replaces the one before. A learner sends the whole state each time, so nothing
    must be merged.
    """
    room.let_in(TOKEN, "Ada", room.code)
    room.put(TOKEN, state_of({"00.1": tried("view")}), NOW_S)
    room.put(TOKEN, state_of({"00.1": tried("view", None)}), NOW_S)
    (row,) = room.rows()
    assert row.state["tasks"]["00.1"]["is_passed"]


@pytest.mark.parametrize("told", [[], "state", 3, {"version": 9}])
def test_what_is_no_state_is_refused(room, told):
    """
    An invalid state is refused, and the last valid one stays.
    """
    room.let_in(TOKEN, "Ada", room.code)
    room.put(TOKEN, state_of({"00.1": tried("view")}), NOW_S)
    with pytest.raises(Denied, match="no state"):
        room.put(TOKEN, told, NOW_S)
    assert room.rows()[0].state["tasks"]["00.1"]["checks"] == 1


def test_code_is_not_kept_even_if_it_is_sent(room, tmp_path):
    """
    Code is not stored even if a learner's program sends it.
    """
    room.let_in(TOKEN, "Ada", room.code)
    task = tried("view") | {"answer": "def all_reduce(tensor): pass"}
    room.put(TOKEN, {**state_of({"00.1": task}), "cell": "import os"}, NOW_S)
    kept = "".join(path.read_text() for path in (tmp_path / "board").rglob("*.json"))
    assert "view" in kept
    assert "all_reduce" not in kept
    assert "import" not in kept


def test_a_board_that_is_killed_has_lost_nothing(room, tmp_path, clock):
    """
    A board that was killed has lost nothing: every confirmed state is on the disk, and a new board
    reads the same rows.
    """
    room.let_in(TOKEN, "Ada", room.code)
    room.put(TOKEN, state_of({"00.1": tried("view")}), NOW_S - 60)
    room.close()
    again = People(tmp_path / "board", clock)
    assert again.rows() == room.rows()
    assert again.rows()[0].ahead_s == 60
    assert (again.code, again.teacher) == (room.code, room.teacher)
    again.put(TOKEN, state_of({"00.1": tried(None)}), NOW_S)
    again.close()


def test_tokens_are_not_on_the_disk_and_the_folder_is_the_users_own(room, tmp_path):
    """
    Tokens are not on the disk, so a reader of a backup cannot change a row. The folder is readable
    for its owner only.
    """
    room.let_in(TOKEN, "Ada", room.code)
    kept = [path for path in (tmp_path / "board").rglob("*") if path.is_file()]
    assert not [path for path in kept if TOKEN in path.read_text() + path.name]
    assert stat.S_IMODE((tmp_path / "board").stat().st_mode) == 0o700


def test_rows_are_gone_after_a_day(room, tmp_path, clock):
    """
    Rows are deleted after a day.
    """
    room.let_in(TOKEN, "Ada", room.code)
    clock.now_s += roster.KEPT_S - 10
    room.let_in(OTHER, "Bo", room.code)
    clock.now_s += 20
    room.forget_the_old()
    assert names(room) == ["Bo"]
    assert len(list((tmp_path / "board" / "rows").iterdir())) == 1


def test_who_leaves_takes_the_row_along(room, tmp_path):
    """
    A learner who leaves deletes the row, which was theirs.
    """
    room.let_in(TOKEN, "Ada", room.code)
    room.remove(OTHER)
    assert names(room) == ["Ada"]
    room.remove(TOKEN)
    assert room.rows() == []
    assert list((tmp_path / "board" / "rows").iterdir()) == []


def test_a_row_that_the_teacher_removes_does_not_come_back_by_itself(room, tmp_path, clock):
    """
    A row that the teacher removes does not return, although the learner's kernel goes on sending
    and tries to join again.
    """
    room.let_in(TOKEN, "Ada", room.code)
    room.put(TOKEN, state_of({"00.1": tried("view")}), NOW_S)
    room.let_in(OTHER, "Bo", room.code)
    key = next(row.key for row in room.rows() if row.name == "Ada")
    assert room.take_off(key)
    assert not room.take_off(key)
    assert names(room) == ["Bo"]
    kept = "".join(path.read_text() for path in (tmp_path / "board").rglob("*.json"))
    assert "Ada" not in kept
    room.close()
    again = People(tmp_path / "board", clock)  # a restarted board remembers the removal
    with pytest.raises(Denied, match="the teacher has removed this row") as denied:
        again.put(TOKEN, state_of(), NOW_S)
    assert denied.value.status == 403
    with pytest.raises(Denied, match="join under another name"):
        again.let_in(TOKEN, "ada", again.code)
    again.let_in(TOKEN, "Ada L.", again.code)
    again.put(TOKEN, state_of(), NOW_S)
    assert names(again) == ["Ada L.", "Bo"]
    assert again.take_off(key)
    clock.now_s += roster.KEPT_S + 1
    again.forget_the_old()
    again.let_in(TOKEN, "Ada", again.code)  # it is another day
    again.close()


def test_a_user_of_a_hub_is_removed_like_anybody(room):
    """
    A removed user of a JupyterHub stays removed. No user joins there, so their next state would
    otherwise restore the row.
    """
    room.put_user("ada", state_of(), NOW_S)
    (row,) = room.rows()
    room.take_off(row.key)
    with pytest.raises(Denied, match="removed"):
        room.put_user("ada", state_of(), NOW_S)
    room.let_in_user("ada", "Ada and Grace")
    room.put_user("ada", state_of(), NOW_S)
    assert names(room) == ["Ada and Grace"]


def test_two_boards_do_not_share_a_folder(room, tmp_path):
    """
    Two boards cannot share a folder, because each would overwrite the other's rows.
    """
    with pytest.raises(BadInput, match="A board is running already"):
        People(tmp_path / "board")
    with pytest.raises(BadInput, match="A board is running already"):
        roster.delete_everything(tmp_path / "board")


def test_a_board_of_a_hub_waits_for_another_one(room, tmp_path, clock):
    """
    A board that a hub starts waits until an older board has ended, says so once, and then has the
    rows that the older one got last.
    """
    told, taken_over = [], []
    waiting = threading.Thread(
        target=lambda: taken_over.append(People(tmp_path / "board", clock, told.append))
    )
    waiting.start()
    wait_until(lambda: told, HANGS_AFTER_S, "the line that says what the board waits for")
    room.put_user("ada", state_of(), NOW_S)
    assert taken_over == []
    room.close()
    waiting.join(HANGS_AFTER_S)
    assert [line.partition(":")[0] for line in told] == ["the board waits"]
    assert str(tmp_path / "board") in told[0]
    assert names(taken_over[0]) == ["ada"]
    taken_over[0].close()


def test_login_stands_beside_another_name(room, tmp_path, clock):
    """
    The login of a hub's user stands beside a chosen name, so that a name whose letters only look
    like another learner's deceives no teacher. A row that was joined with the class code has none.
    """
    looks_like = "l\u0435arner01"  # with the Cyrillic letter
    for login in ("learner01", "learner03"):
        room.put_user(login, state_of(), NOW_S)
    assert {row.name: row.login for row in room.rows()} == {"learner01": "", "learner03": ""}
    room.let_in_user("learner03", looks_like)
    room.put_user("learner03", state_of(), NOW_S)
    room.let_in(TOKEN, "Ada", room.code)
    told = {"learner01": "", looks_like: "learner03", "Ada": ""}
    assert {row.name: row.login for row in room.rows()} == told
    assert {row.name: row.login for row in roster.kept_rows(tmp_path / "board")} == told
    room.close()
    again = People(tmp_path / "board", clock)
    assert {row.name: row.login for row in again.rows()} == told
    again.close()


def test_rows_of_an_older_board_are_read(room, tmp_path, clock):
    """
    Rows that an older board has stored, without a login, are read, and get it with the next state.
    """
    room.let_in_user("learner03", "Ada")
    room.close()
    (path,) = (tmp_path / "board" / "rows").iterdir()
    stored = json.loads(path.read_text())
    del stored["login"]
    path.write_text(json.dumps(stored))
    again = People(tmp_path / "board", clock)
    assert [(row.name, row.login) for row in again.rows()] == [("Ada", "")]
    again.put_user("learner03", state_of(), NOW_S)
    assert [(row.name, row.login) for row in again.rows()] == [("Ada", "learner03")]
    again.close()


def test_everything_is_deleted_by_one_call(room, tmp_path):
    """
    One call deletes all rows and the folder. Where there was no board, it deletes nothing.
    """
    room.let_in(TOKEN, "Ada", room.code)
    room.close()
    assert roster.delete_everything(tmp_path / "board") == 1
    assert not (tmp_path / "board").exists()
    assert roster.delete_everything(tmp_path / "board") == 0


def test_rows_that_cannot_be_read_are_told(room, tmp_path):
    """
    An unreadable row raises an error at the start, because a board that leaves a learner out
    silently is worse than none.
    """
    room.let_in(TOKEN, "Ada", room.code)
    room.close()
    (path,) = (tmp_path / "board" / "rows").iterdir()
    path.write_text("{")
    with pytest.raises(BadInput, match=r"Cannot read what the board has kept: .* --delete"):
        People(tmp_path / "board")


def test_a_full_board_takes_nobody_in(room, monkeypatch):
    """
    A full board accepts no further learner, so that a program that knows the code cannot fill the
    disk.
    """
    monkeypatch.setattr(roster, "MOST_PEOPLE", 1)
    room.let_in(TOKEN, "Ada", room.code)
    with pytest.raises(Denied, match="full"):
        room.let_in(OTHER, "Bo", room.code)
    room.put(TOKEN, state_of(), NOW_S)


def test_a_user_of_a_hub_has_a_row_without_joining(room):
    """
    A user of a JupyterHub has a row without joining, because the hub has checked who they are.
    """
    room.put_user("ada", state_of({"00.1": tried("view")}), NOW_S)
    room.put_user("ada", state_of({"00.1": tried(None)}), NOW_S)
    (row,) = room.rows()
    assert row.name == "ada"
    assert row.state["tasks"]["00.1"]["is_passed"]


def test_a_user_of_a_hub_may_choose_a_name_and_nobody_loses_theirs_by_it(room):
    """
    A user of a JupyterHub may choose a name. If that name is another user's login, the other user
    keeps their own row.
    """
    room.put_user("ada", state_of({"00.1": tried("view")}), NOW_S)
    room.let_in_user("ada", "Bo")
    room.put_user("ada", state_of({"00.1": tried("view", None)}), NOW_S)
    room.put_user("bo", state_of(), NOW_S)
    rows = {row.name: row.state["tasks"] for row in room.rows()}
    assert set(rows) == {"Bo", "bo (login)"}
    assert rows["Bo"]["00.1"]["is_passed"]
    with pytest.raises(Denied, match="taken"):
        room.let_in_user("bo", "BO")
    room.put_user("x" * 60, state_of(), NOW_S)
    room.put_user("x" * 61, state_of(), NOW_S)
    assert len(room.rows()) == 4


def test_rows_can_be_read_beside_a_board_that_runs(room, tmp_path):
    """
    The rows can be read while the board runs, so `ddp-lessons board --csv` need not wait for its
    end.
    """
    room.let_in(TOKEN, "Ada", room.code)
    assert [row.name for row in roster.kept_rows(tmp_path / "board")] == ["Ada"]
    assert json.loads((tmp_path / "board" / "class.json").read_text())["code"] == room.code
