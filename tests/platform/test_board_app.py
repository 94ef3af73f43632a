"""
Tests of the board's web application: what a teacher, a learner and others may read and write.
"""

import http.client
import json
import re

import pytest
from class_board import NOW_S, TOKEN, BoardThread, row, state_of, tried

from ddp_lessons.course.classroom.board.app import PAGE
from ddp_lessons.course.classroom.board.names import Denied
from ddp_lessons.course.classroom.board.roster import People

OTHER = "o" * 40


@pytest.fixture
def board(tmp_path):
    """
    Yield a board that learners can join.
    """
    people = People(tmp_path / "board")
    with BoardThread(people, secret=people.teacher) as found:
        yield found
    people.close()


def first_event(board, cookie):
    """
    Return the first event that the board sends to a page.
    """
    connection = http.client.HTTPConnection("127.0.0.1", board.port, timeout=20)
    try:
        connection.request("GET", "/events", headers={"Cookie": f"ddp_lessons_board={cookie}"})
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "text/event-stream"
        line = answer.fp.readline().decode()
        while not line.startswith("data: "):
            line = answer.fp.readline().decode()
        return json.loads(line.removeprefix("data: "))
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/events", "/board.csv", "/?token=wrong"])
def test_the_teachers_paths_want_the_teachers_secret(board, path):
    """
    The teacher's paths need the teacher's secret: neither the class code nor a learner's token
    opens them.
    """
    for cookie in (None, "wrong", board.people.code):
        status, text, _ = board.ask("GET", path, cookie=cookie)
        assert status == 403
        assert "the teacher's" in text
    status, _, _ = board.ask("GET", path, token=TOKEN)
    assert status == 403


def test_the_secret_goes_from_the_address_into_a_cookie(board):
    """
    The secret in the address is moved into a cookie, because the projector also shows the address
    bar.
    """
    status, _, headers = board.ask("GET", f"/?token={board.secret}")
    assert (status, headers["Location"]) == (302, "/")
    assert re.search("HttpOnly", headers["Set-Cookie"])
    assert re.search("SameSite=Lax", headers["Set-Cookie"])
    status, text, headers = board.ask("GET", "/", cookie=board.secret)
    assert status == 200
    assert "<title>Class board</title>" in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]


def test_the_page_loads_nothing_from_elsewhere():
    """
    The page loads nothing from other servers, so that it works without a network and no other
    server learns about its use.
    """
    for name in ("index.html", "board.css", "board.js"):
        text = (PAGE / name).read_text()
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text


def test_a_learner_joins_sends_and_is_seen(board):
    """
    A learner joins and sends a state, and the teacher sees it on the page and in the table.
    """
    assert board.join("Ada") == 200
    assert board.put(state_of({"00.1": tried("view")})) == 200
    told = first_event(board, board.secret)
    assert [one["name"] for one in told["rows"]] == ["Ada"]
    assert told["rows"][0]["cells"]["00.1"]["mistake"] == "view"
    assert told["join"] == {"address": board.url, "code": board.people.code}
    status, text, headers = board.ask("GET", "/board.csv", cookie=board.secret)
    assert status == 200
    assert "Ada,task,00_ranks,00.1,tried,1" in text
    assert headers["Content-Disposition"].startswith("attachment")


def test_a_learner_can_neither_read_rows_nor_write_anothers(board):
    """
    Only the token decides whose row a state belongs to, not a name in the state, and a learner
    cannot read any row.
    """
    board.join("Ada", TOKEN)
    board.join("Bo", OTHER)
    forged = {**state_of({"00.1": tried(None)}), "name": "Ada", "token": TOKEN}
    assert board.put(forged, OTHER) == 200
    assert board.put(forged, "x" * 40) == 401
    assert board.put(forged, "") == 401
    rows = {row.name: row.state["tasks"] for row in board.people.rows()}
    assert rows["Ada"] == {}
    for path in ("/api/row", "/api/join", "/events"):
        status, text, _ = board.ask("GET", path, token=TOKEN)
        assert status in (403, 405)
        assert "Bo" not in text


def test_a_wrong_code_or_a_taken_name_is_said(board):
    """
    A wrong class code and a taken name are refused, with a message for the learner.
    """
    assert board.join("Ada", code="WRONG") == 403
    assert board.join("Ada") == 200
    status, text, _ = board.ask(
        "POST", "/api/join", {"name": "Ada", "code": board.people.code}, OTHER
    )
    assert status == 409
    assert json.loads(text) == {"error": "this name is taken; choose another one"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"{}",
        b'{"state": {}}',
        b'{"state": {}, "sent_s": NaN}',
        b'{"state": {}, "sent_s": 1e300}',
        b'{"state": {}, "sent_s": true}',
        b'{"state": 3, "sent_s": 1}',
        b"\xff",
    ],
)
def test_what_is_no_state_is_refused_and_breaks_nothing(board, body):
    """
    A request that is no state is refused and leaves the board usable: any user with the class code
    can send anything.
    """
    board.join("Ada")
    status, text, _ = board.ask("PUT", "/api/row", body, TOKEN)
    assert status == 400
    assert "Traceback" not in text
    assert first_event(board, board.secret)["rows"][0]["name"] == "Ada"


def test_a_state_that_is_too_long_is_refused(board):
    """
    A state that is too long is refused, so that no user can fill the board's memory.
    """
    board.join("Ada")
    with pytest.raises((AssertionError, OSError)):
        assert board.ask("PUT", "/api/row", b" " * 300_000, TOKEN)[0] == 200
    assert board.put(state_of()) == 200


def test_strange_times_and_numbers_break_neither_page_nor_table(board):
    """
    Absurd times and numbers in a valid state break neither the page nor the table.
    """
    board.join("Ada")
    odd = {"said": 1e300, "first": -1e300, "before": 0.1, "was": 1e-300, "said_s": 4e9, "was_s": 0}
    task = {**tried("view", None), "solved_s": 4e9, "checks": 999_999}
    assert board.put(state_of({"00.1": task}, {"lines": odd}), sent_s=0) == 200
    assert first_event(board, board.secret)["rows"][0]["name"] == "Ada"
    assert board.ask("GET", "/board.csv", cookie=board.secret)[0] == 200


def test_the_teacher_removes_a_row_and_nobody_else_can(board):
    """
    Only the teacher's secret can remove a row; a learner's token and the class code cannot.
    """
    board.join("Ada", TOKEN)
    board.join("Bo", OTHER)
    keys = {one["name"]: one["key"] for one in first_event(board, board.secret)["rows"]}
    path = f"/rows/{keys['Ada']}"
    for cookie in (None, "wrong", board.people.code):
        assert board.ask("DELETE", path, token=TOKEN, cookie=cookie)[0] == 403
    # The request with which a browser first asks for a page of another site.
    assert board.ask("OPTIONS", path, cookie=board.secret)[0] == 405
    assert board.ask("DELETE", "/rows/ada", cookie=board.secret)[0] == 404
    assert len(board.people.rows()) == 2
    for _ in range(2):
        assert board.ask("DELETE", path, cookie=board.secret)[0] == 200
        assert [one["name"] for one in first_event(board, board.secret)["rows"]] == ["Bo"]
    assert board.put(state_of(), TOKEN) == 403
    assert board.put(state_of(), OTHER) == 200


def test_rows_of_a_folder_are_not_the_boards_to_remove():
    """
    The board refuses to remove rows that it reads from a folder, because their files belong to the
    learners.
    """

    class Rows:
        def rows(self):
            return [row()]

    with BoardThread(sources=[Rows()]) as board:
        assert [one["key"] for one in first_event(board, board.secret)["rows"]] == [""]
        status, text, _ = board.ask("DELETE", f"/rows/{'0' * 64}", cookie=board.secret)
    assert (status, json.loads(text)) == (404, {"error": "the rows of this board are not its own"})


def test_a_learner_leaves(board):
    """
    A learner who leaves removes only their own row.
    """
    board.join("Ada", TOKEN)
    board.join("Bo", OTHER)
    assert board.ask("DELETE", "/api/row", token=TOKEN)[0] == 200
    assert board.ask("DELETE", "/api/row", token="x" * 40)[0] == 200
    assert [row.name for row in board.people.rows()] == ["Bo"]


def test_under_a_hub_the_hubs_token_says_who_it_is(tmp_path):
    """
    Under a hub the hub's token identifies a learner: no learner has to join, and none can take the
    name of another.
    """

    class Hub:
        async def user(self, token):
            if token not in ("a" * 40, "b" * 40):
                raise Denied("nobody's")
            return {"a": "ada", "b": "bo"}[token[0]]

    people = People(tmp_path / "board")
    with BoardThread(people, hub=Hub()) as board:
        assert board.put(state_of({"00.1": tried("view")}), "a" * 40) == 200
        assert board.put(state_of(), "b" * 40, NOW_S) == 200
        assert sorted(row.name for row in people.rows()) == ["ada", "bo"]
        assert board.join("Ada and Eve", "a" * 40, code="none") == 200
        assert board.put(state_of({"00.1": tried("view")}), "a" * 40) == 200
        assert sorted(row.name for row in people.rows()) == ["Ada and Eve", "bo"]
        assert board.join("Bo", "a" * 40) == 409
        assert board.put(state_of(), "c" * 40) == 403
        assert board.join("Cy", "c" * 40) == 403
        assert board.ask("DELETE", "/api/row", token="c" * 40)[0] == 403
        assert board.ask("DELETE", "/api/row", token="b" * 40)[0] == 200
    assert [row.name for row in people.rows()] == ["Ada and Eve"]
    people.close()
