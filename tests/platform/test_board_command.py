"""
Tests of `ddp-lessons board` in a process of its own: its address, its end, and its stored rows.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from class_board import state_of, tried
from paths import ROOT
from typer.testing import CliRunner
from waiting import wait_until

from ddp_lessons.course.classroom.board import serving
from ddp_lessons.course.classroom.board.roster import People
from ddp_lessons.course.classroom.board_columns import columns, sections
from ddp_lessons.course.cli import app
from ddp_lessons.progress.board_client import Membership
from ddp_lessons.progress.sending import Sender

START_S = 120.0
NUM_LEARNERS = 30


class Command:
    """
    A process that runs `ddp-lessons board`. Use it in a `with`.

    Args:
        folder: The board's state folder.
        arguments: Further arguments of the command.
    """

    def __init__(self, folder, *arguments):
        self.folder = folder
        environment = {**os.environ, "DDP_LESSONS_STATE_DIR": str(folder)}
        environment.pop("JUPYTERHUB_SERVICE_NAME", None)
        self.output = folder.with_suffix(".log")
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ddp_lessons.course.cli", "board", *arguments],
                cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def __enter__(self):
        try:
            wait_until(self._address, START_S, f"the board's address: {self.output}")
        except BaseException:
            self.__exit__()
            raise
        self.url, self.token = self._address().groups()
        return self

    def _address(self):
        assert self.process.poll() is None, self.output.read_text()
        return re.search(r"(http://[^/]+)/\?token=(\S+)", self.output.read_text())

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def port(self):
        """
        The port in the board's address.
        """
        return self.url.rpartition(":")[2]

    def open(self, path="/"):
        """
        Open a path of the board as the teacher does, and return the text.
        """
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(f"{self.url}/?token={self.token}", timeout=20):
            pass
        with opener.open(f"{self.url}{path}", timeout=20) as answer:
            return answer.read().decode()


def kept(folder):
    """
    Return the class code that a board has stored in a state folder.
    """
    return json.loads((folder / "board" / "class.json").read_text())["code"]


@pytest.mark.timeout(240)
def test_a_board_that_is_killed_comes_back_with_all_rows(tmp_path):
    """
    A board that is killed and started again has the same rows, address, secret and code, so that
    pages and learners can go on.
    """
    folder = tmp_path / "state"
    with Command(folder, "--port", "0") as first:
        ada = Membership(first.url, "Ada", kept(folder), "t" * 40)
        ada.send(state_of({"00.1": tried("view")}))
        assert "Ada,task,00_ranks,00.1,tried,1" in first.open("/board.csv")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    with Command(folder, "--port", first.port) as again:
        assert (again.url, again.token) == (first.url, first.token)
        assert "Ada,task,00_ranks,00.1,tried,1" in again.open("/board.csv")
        ada.send(state_of({"00.1": tried("view", None)}))
        assert "Ada,task,00_ranks,00.1,solved,2" in again.open("/board.csv")
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait(20) == 0
        assert "Traceback" not in again.output.read_text()


@pytest.mark.timeout(300)
def test_a_board_that_is_killed_while_thirty_send_loses_nothing(tmp_path):
    """
    A board that is killed while thirty learners send loses no state: each sender repeats a state
    until the board confirms it.
    """
    folder, senders = tmp_path / "state", []
    paths = [tmp_path / f"learner-{number}.json" for number in range(NUM_LEARNERS)]

    def write(number, *tries):
        new = paths[number].with_suffix(".new")
        new.write_text(json.dumps(state_of({"00.1": tried(*tries)})))
        new.replace(paths[number])

    with Command(folder, "--port", "0") as first:
        code = kept(folder)
        for number, path in enumerate(paths):
            member = Membership(first.url, f"learner {number}", code, f"{number:040}")
            senders.append(Sender(member, path, look_every_s=0.05))
            write(number, "view")
            senders[-1].start()
        wait_until(lambda: first.open("/board.csv").count("tried,1") > 10, 60, "some of them")
        for number in range(NUM_LEARNERS):
            write(number, "view", "view")
            if number == NUM_LEARNERS // 2:
                first.process.send_signal(signal.SIGKILL)
                first.process.wait()
    with Command(folder, "--port", first.port) as again:
        everybody = NUM_LEARNERS
        wait_until(lambda: again.open("/board.csv").count("tried,2") == everybody, 120, "all")
    for sender in senders:
        sender.end()
    for sender in senders:
        sender.join(20)
        assert not sender.is_alive()


@pytest.mark.timeout(180)
def test_a_folder_of_state_files_is_shown_as_it_changes(tmp_path):
    """
    With `--shared` the board shows the state files of a folder as they change, and no learner can
    join, because none needs to send.
    """
    shared = tmp_path / "class"
    shared.mkdir()
    (shared / "ada.json").write_text(json.dumps(state_of({"00.1": tried("view")})))
    with Command(tmp_path / "state", "--port", "0", "--shared", str(shared)) as board:
        assert "ada,task,00_ranks,00.1,tried" in board.open("/board.csv")
        (shared / "bo.json").write_text(json.dumps(state_of({"00.1": tried(None)})))
        assert "bo,task,00_ranks,00.1,solved" in board.open("/board.csv")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(
                urllib.request.Request(f"{board.url}/api/join", b"{}", method="POST"), timeout=20
            )
        refused.value.close()
        assert refused.value.code == 404


def invoke(folder, monkeypatch, *arguments):
    """
    Run the command line in this process, on a state folder, and return its result.
    """
    monkeypatch.setenv("DDP_LESSONS_STATE_DIR", str(folder))
    return CliRunner().invoke(app, ["board", *map(str, arguments)])


def test_what_is_kept_is_exported_and_deleted(tmp_path, monkeypatch):
    """
    `--csv` exports the stored rows, and `--delete` deletes them, but not while a board runs.
    """
    people = People(tmp_path / "state" / "board")
    people.let_in("t" * 40, "Ada", people.code)
    people.put("t" * 40, state_of({"00.1": tried("view")}), 1_790_000_000)
    shown = invoke(tmp_path / "state", monkeypatch, "--csv", tmp_path / "day.csv")
    assert shown.exit_code == 0, shown.output
    assert "Ada,task,00_ranks,00.1,tried,1,0,view" in (tmp_path / "day.csv").read_text()
    refused = invoke(tmp_path / "state", monkeypatch, "--delete")
    assert refused.exit_code == 1
    assert "A board is running already" in refused.stderr
    people.close()
    assert invoke(tmp_path / "state", monkeypatch, "--delete").output == "1 rows deleted\n"
    assert not (tmp_path / "state" / "board").exists()


def test_a_port_that_is_taken_is_told(tmp_path, monkeypatch):
    """
    A port in use is reported, with the option `--port`.
    """
    with Command(tmp_path / "other", "--port", "0") as board:
        shown = invoke(tmp_path / "state", monkeypatch, "--port", board.port)
    assert shown.exit_code == 1
    assert "The board cannot listen" in shown.stderr
    assert "--port" in shown.stderr


def test_two_sources_are_one_too_many(tmp_path, monkeypatch):
    """
    Two sources of rows are refused, because equal names from both could not be distinguished.
    """
    shown = invoke(tmp_path, monkeypatch, "--shared", tmp_path, "--folder", tmp_path)
    assert shown.exit_code == 1
    assert "Two sources" in shown.stderr


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("0.0.0.0", "http://192.0.2.7:80"),
        ("::", "http://192.0.2.7:80"),
    ],
)
def test_the_address_is_one_that_learners_can_type(monkeypatch, host, address):
    """
    The printed address is one that learners can open: 0.0.0.0 works on the teacher's machine only.
    """
    monkeypatch.setattr(serving, "_own_address", lambda: "192.0.2.7")
    assert serving._address(host, 80) == address


def test_own_address_is_asked_without_sending_anything():
    """
    The machine's own address is found without sending a packet. Without a network the host's name
    replaces it.
    """
    assert serving._own_address() not in ("", "0.0.0.0")


def test_columns_are_those_of_the_course():
    """
    The columns are all predictions and tasks of the course, in the order of the lessons.
    """
    found = columns(ROOT)
    assert [one.key for one in found[:2]] == ["lines", "values_of_secret"]
    assert found[0].title == "Which processes answer a cell?"
    assert "How many lines will you see?" in found[0].question
    assert "The %%px cell below" in found[0].question  # without Markdown's formatting
    assert not [one.question for one in found if "`" in one.question]
    keys = [one.key for one in found]
    assert len(set(keys)) == len(keys)
    stems = list(dict.fromkeys(one.stem for one in found))
    assert stems == sorted(stems)
    tasks = [one for one in found if one.kind == "task"]
    assert all("blank" in one.hints for one in tasks)
    asked = sum(
        text.read_text().count('\npredict("') for text in (ROOT / "notebooks" / "py").glob("*.py")
    )
    assert len(sections(ROOT)) == asked
