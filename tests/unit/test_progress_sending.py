"""
Sending a learner's state from a notebook to the board, in the background: nothing is lost, and no
cell is slowed.
"""

import http.server
import json
import os
import stat
import subprocess
import sys
import threading

import pytest
from class_board import BoardThread, state_of, tried
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons import join_board, leave_board
from ddp_lessons.course.classroom.board.roster import People
from ddp_lessons.errors import BadInput
from ddp_lessons.progress import board_client, notes, sending, state
from ddp_lessons.progress.board_client import Membership
from ddp_lessons.progress.sending import Sender
from ddp_lessons.ranks.supervisor.controller_options import hold_ports

LOOK_S = 0.05


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """
    Use a state folder of the test's own, and end the threads that send from it.
    """
    monkeypatch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path / "state"))
    for name in ("DDP_LESSONS_BOARD_URL", "JUPYTERHUB_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "state"
    while sender := sending.the_sender():
        sender.end()
        sender.join(HANGS_AFTER_S)


@pytest.fixture
def people(tmp_path):
    """
    Give the People of a board, and close them after the test.
    """
    found = People(tmp_path / "board")
    yield found
    found.close()


@pytest.fixture
def port():
    """
    Give a port that stays this test's, whether a board listens on it or not.
    """
    (held,) = hold_ports(1)
    with held:
        yield held.getsockname()[1]


def tasks_of(people, name="Ada"):
    """
    Return the tasks of a learner on the board, {} if they have no row.
    """
    return {row.name: row.state["tasks"] for row in people.rows()}.get(name, {})


def test_one_line_and_what_was_noted_is_on_the_board(people, capsys, folder):
    """
    After `join_board`, earlier notes are on the board at once, and later ones follow.
    """
    notes.note_check("00.1", passed=False, mistake="view")
    with BoardThread(people) as board:
        join_board(board.url, code=people.code, name="  Ada ")
        assert capsys.readouterr().out == "you are on the board as Ada\n"
        wait_until(lambda: tasks_of(people).get("00.1"), HANGS_AFTER_S, "the first try")
        notes.note_check("00.1", passed=True)
        wait_until(lambda: tasks_of(people)["00.1"]["is_passed"], HANGS_AFTER_S, "the second one")
    assert stat.S_IMODE((folder / "board.json").stat().st_mode) == 0o600


def test_who_has_not_joined_sends_nothing():
    """
    Without `join_board` nothing is sent: there is no thread and no connection.
    """
    notes.note_check("00.1", passed=True)
    assert sending.the_sender() is None


def test_another_notebook_of_the_same_learner_sends_too(people):
    """
    A learner joins once. A later kernel starts to send with its first note.
    """
    with BoardThread(people) as board:
        join_board(board.url, code=people.code, name="Ada")
        first = sending.the_sender()
        first.end()
        first.join(HANGS_AFTER_S)
        code = (
            "from ddp_lessons.progress import notes, sending\n"
            "notes.note_check('02.1', passed=True)\n"
            "import sys\n"
            "sys.stdin.read()\n"
        )
        kernel = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        try:
            wait_until(
                lambda: tasks_of(people).get("02.1"), HANGS_AFTER_S, "the other kernel's note"
            )
        finally:
            kernel.communicate(timeout=HANGS_AFTER_S)


def test_what_a_terminal_notes_is_sent_by_the_notebook(people):
    """
    A note of another process, such as a hint in a terminal, is sent too, because the sender reads
    the file.
    """
    with BoardThread(people) as board:
        join_board(board.url, code=people.code, name="Ada")
        path = state.state_file()
        path.write_text(json.dumps(state_of({"00.1": tried("view", hints=2)})))
        wait_until(
            lambda: tasks_of(people).get("00.1"), HANGS_AFTER_S, "what another process wrote"
        )
        assert tasks_of(people)["00.1"]["hints"] == 2


def test_a_board_that_is_away_loses_nothing(people, tmp_path, port):
    """
    A board that was killed and restarted receives automatically what was noted in between.
    """
    path = tmp_path / "progress.json"
    path.write_text(json.dumps(state_of({"00.1": tried("view")})))
    member = Membership(f"http://127.0.0.1:{port}", "Ada", people.code, "t" * 40)
    sender = Sender(member, path, look_every_s=LOOK_S)
    sender.start()
    with BoardThread(people, port):
        wait_until(lambda: tasks_of(people).get("00.1"), HANGS_AFTER_S, "the first state")
    path.write_text(json.dumps(state_of({"00.1": tried("view", None)})))
    with BoardThread(people, port):
        wait_until(lambda: tasks_of(people)["00.1"]["is_passed"], HANGS_AFTER_S, "the second one")
    sender.end()
    sender.join(HANGS_AFTER_S)
    assert not sender.is_alive()


def test_joining_a_board_that_is_away_stops_no_notebook(people, capsys, port):
    """
    Joining a board that is away raises no error, because the call is in a notebook's first cell and
    Run All must continue.
    """
    notes.note_check("00.1", passed=False, mistake="view")
    join_board(f"http://127.0.0.1:{port}", code=people.code, name="Ada")
    assert "does not answer yet" in capsys.readouterr().out
    with BoardThread(people, port):
        wait_until(lambda: tasks_of(people).get("00.1"), HANGS_AFTER_S, "the state")


class _Silent(http.server.BaseHTTPRequestHandler):
    # A handler that answers no request until the test ends.
    def do_PUT(self):
        self.server.is_asked.set()
        self.server.is_over.wait()

    do_POST = do_PUT


@pytest.fixture
def silent():
    """
    Give a server that never answers.
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Silent)
    server.is_asked, server.is_over = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.is_over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_board_that_hangs_slows_no_cell(silent, monkeypatch):
    """
    A board that hangs slows no cell: a check writes its note and returns, and a thread sends it.
    """
    monkeypatch.setattr(board_client, "_WITHIN_S", 10 * HANGS_AFTER_S)
    Membership(f"http://127.0.0.1:{silent.server_port}", "Ada", "CODE", "t" * 40).save()
    notes.note_check("00.1", passed=False)
    assert silent.is_asked.wait(HANGS_AFTER_S)
    for _ in range(20):
        notes.note_check("00.1", passed=False)  # a call that waited for the board would not return
    assert notes.row_of("00.1")["checks"] == 21
    assert sending.the_sender().is_alive()


def test_a_board_that_says_no_is_asked_no_more(people):
    """
    A sender stops after the board's refusal, so that it does not send for ever to a class that is
    over.
    """
    with BoardThread(people) as board:
        Membership(board.url, "Ada", "WRONG", "t" * 40).save()
        notes.note_check("00.1", passed=True)
        wait_until(lambda: sending.the_sender() is None, HANGS_AFTER_S, "the end of sending")
        assert people.rows() == []


def test_deleted_rows_come_back_while_the_class_goes_on(people):
    """
    A deleted row returns with the next note while the class goes on, so a teacher's deletion by
    mistake is harmless.
    """
    with BoardThread(people) as board:
        join_board(board.url, code=people.code, name="Ada")
        notes.note_check("00.1", passed=False)
        wait_until(lambda: tasks_of(people).get("00.1"), HANGS_AFTER_S, "the first try")
        people.remove(board_client.membership().token)
        notes.note_check("00.1", passed=True)
        wait_until(lambda: tasks_of(people).get("00.1"), HANGS_AFTER_S, "the row")


def test_who_leaves_is_gone_and_sends_no_more(people, capsys, monkeypatch):
    """
    After `leave_board` the row is deleted and nothing more is sent, also where a hub's
    configuration puts every user on the board.
    """
    with BoardThread(people) as board:
        join_board(board.url, code=people.code, name="Ada")
        notes.note_check("00.1", passed=False)
        wait_until(lambda: tasks_of(people).get("00.1"), HANGS_AFTER_S, "the first try")
        leave_board()
        monkeypatch.setenv("DDP_LESSONS_BOARD_URL", board.url)
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "h" * 40)
        notes.note_check("00.1", passed=True)
        assert people.rows() == []
        assert sending.the_sender() is None
    assert capsys.readouterr().out.endswith("you are off the board\n")
    leave_board()
    assert capsys.readouterr().out == "you are on no board\n"


def test_who_leaves_in_one_notebook_has_left_in_all(people):
    """
    Leaving in one notebook ends the sending of all, because another sender still has the token and
    would restore the row.
    """
    with BoardThread(people) as board:
        join_board(board.url, code=people.code, name="Ada")
        notes.note_check("00.1", passed=False)
        wait_until(lambda: tasks_of(people).get("00.1"), HANGS_AFTER_S, "the first try")
        other = Sender(board_client.membership(), look_every_s=LOOK_S)
        other.start()
        leave_board()
        with pytest.raises(board_client.Stranger):  # between two polls of the file
            other.member.send(state.read())
        notes.note_check("00.1", passed=True)
        other.join(HANGS_AFTER_S)
        assert not other.is_alive()
        assert people.rows() == []


def test_a_row_can_be_deleted_when_the_board_is_back(people, capsys, port):
    """
    A learner who left while the board was away can delete the row later, because the token is kept
    for that.
    """
    with BoardThread(people, port=port) as board:
        join_board(board.url, code=people.code, name="Ada")
        notes.note_check("00.1", passed=False)
        wait_until(lambda: tasks_of(people).get("00.1"), HANGS_AFTER_S, "the first try")
    leave_board()
    assert capsys.readouterr().out.endswith("run leave_board() again later\n")
    notes.note_check("00.1", passed=True)
    assert sending.the_sender() is None
    with BoardThread(people, port=port):
        leave_board()
        assert people.rows() == []
    assert capsys.readouterr().out == "you are off the board\n"


def test_a_board_that_says_no_is_not_asked_with_every_note(people):
    """
    After a refusal, later notes do not ask the board again: thirty learners with yesterday's code
    would lock out those with today's.
    """
    with BoardThread(people) as board:
        Membership(board.url, "Ada", "WRONG1", "t" * 40).save()
        notes.note_check("00.1", passed=True)
        wait_until(lambda: sending.the_sender() is None, HANGS_AFTER_S, "the board's no")
        notes.note_check("00.1", passed=True)
        assert sending.the_sender() is None
        join_board(board.url, code=people.code, name="Ada")
        wait_until(lambda: tasks_of(people).get("00.1"), HANGS_AFTER_S, "the state")


def test_a_hub_needs_no_line_in_the_notebook(people, monkeypatch, folder):
    """
    On a hub a notebook needs no call: the hub's configuration gives the board's address, and its
    token the user.
    """

    class Hub:
        async def user(self, token):
            return {"h" * 40: "ada"}[token]

    with BoardThread(people, hub=Hub(), prefix="/services/board/") as board:
        monkeypatch.setenv("DDP_LESSONS_BOARD_URL", f"{board.url}/services/board")
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "h" * 40)
        notes.note_check("00.1", passed=True)
        wait_until(lambda: tasks_of(people, "ada").get("00.1"), HANGS_AFTER_S, "the state")
        leave_board()
        assert people.rows() == []
        join_board(name="Ada and Grace")
        wait_until(
            lambda: tasks_of(people, "Ada and Grace"), HANGS_AFTER_S, "the state, by that name"
        )
        assert "h" * 40 not in "".join(path.read_text() for path in folder.iterdir())


@pytest.mark.parametrize(
    ("url", "name", "fault"),
    [
        ("board", "Ada", "No address"),
        (None, "Ada", "No address"),
        ("ftp://127.0.0.1", "Ada", "No address"),
        ("http://", "Ada", "No address"),
        ("http://127.0.0.1:1", "  ", "No name"),
        ("http://127.0.0.1:1", "x" * 41, "No name"),
    ],
)
def test_what_cannot_be_joined_is_told(url, name, fault, folder):
    """
    An invalid address or name is refused with one sentence, and nothing is stored.
    """
    with pytest.raises(BadInput, match=f"^{fault}.*: expected .* \\(got "):
        join_board(url, code="CODE", name=name)
    assert not folder.exists()


def test_a_wrong_code_is_told_in_the_cell(people, folder):
    """
    A wrong code is reported in the cell, where the learner can correct it.
    """
    with BoardThread(people) as board:
        with pytest.raises(BadInput, match="not the one that the board shows"):
            join_board(board.url, code="WRONG", name="Ada")
        assert not folder.exists()


def test_a_server_that_is_no_board_is_told():
    """
    A server that is no board is reported as such.
    """
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(BadInput, match="did not let you in: it answers"):
            join_board(f"http://127.0.0.1:{server.server_port}", code="X", name="Ada")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_token_of_one_board_is_not_sent_to_another(people, tmp_path):
    """
    Each board gets its own token, because the owner of a second board could otherwise change a
    learner's row on the first.
    """
    other = People(tmp_path / "other")
    with BoardThread(people) as board, BoardThread(other) as elsewhere:
        join_board(board.url, code=people.code, name="Ada")
        first = board_client.membership().token
        join_board(elsewhere.url, code=other.code, name="Ada")
        assert not other.knows(first)
        assert board_client.membership().token != first
        join_board(board.url, code=people.code, name="Ada")  # the row still belongs to this learner
        assert board_client.membership().token == first
    other.close()


def test_thirty_learners_at_once_and_nothing_is_lost(people, tmp_path, port):
    """
    Thirty learners send at once while the board is killed and restarted, and no state is lost.
    """
    rounds, senders = 5, []
    paths = [tmp_path / f"learner-{n}.json" for n in range(30)]
    for number, path in enumerate(paths):
        path.write_text(json.dumps(state_of()))
        member = Membership(
            f"http://127.0.0.1:{port}", f"learner {number}", people.code, f"{number:040}"
        )
        senders.append(Sender(member, path, look_every_s=LOOK_S))

    def write(first):
        for one in range(rounds):
            for number, path in enumerate(paths):
                told = state_of({"00.1": tried(*["view"] * (first + one + number + 1))})
                new = path.with_suffix(f".{os.getpid()}")
                new.write_text(json.dumps(told))
                new.replace(path)

    def checks():
        return sorted(
            (row.name, row.state["tasks"].get("00.1", {}).get("checks", 0)) for row in people.rows()
        )

    def wanted(first):
        return sorted((f"learner {n}", first + rounds + n) for n in range(30))

    with BoardThread(people, port):
        for sender in senders:
            sender.start()
        wait_until(lambda: len(people.rows()) == 30, HANGS_AFTER_S, "all thirty")
        write(0)
    write(rounds)
    with BoardThread(people, port):
        wait_until(lambda: checks() == wanted(rounds), HANGS_AFTER_S, "what all have done")
    for sender in senders:
        sender.end()
    for sender in senders:
        sender.join(HANGS_AFTER_S)
