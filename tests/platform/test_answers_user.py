"""
Tests of the user who runs answers that root checks: without rights, homes or other answers.
"""

import json
import os
import pwd
import subprocess
from pathlib import Path

import pytest
from handed_in_exercises import PATHS, RIGHT, hand_in
from typer.testing import CliRunner

from ddp_lessons.course.classroom import answers_user, handed_in, submissions
from ddp_lessons.course.cli import app
from ddp_lessons.errors import BadInput

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root runs answers as another user"),
]
LOOKS = """
    import os, pathlib, json
    seen = {{
        "user": os.getuid(),
        "groups": os.getgroups(),
        "can_read": [path for path in {paths!r} if os.access(path, os.R_OK)],
        "homes": os.listdir("/home"),
        "others": [one for one in os.listdir("/proc") if one.isdigit() and {mark!r} in
                   pathlib.Path("/proc", one, "cmdline").read_text(errors="replace")],
    }}
    raise RuntimeError("seen" + json.dumps(seen) + "end")
"""


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    """
    Run answers as `nobody`, whom every system has.
    """
    monkeypatch.setenv(answers_user.USER_VARIABLE, "nobody")


def test_an_answer_sees_neither_others_nor_the_roster(tmp_path):
    """
    An answer runs as a user without rights. It reads neither another submission, the roster nor a
    home, it sees no process outside of its own, and a right answer beside it is solved.
    """
    room, roster = tmp_path / "room", tmp_path / "roster.txt"
    other = hand_in(room / "bo", RIGHT)
    roster.write_text("ada\nbo\n")
    paths = [str(other), str(roster), "/etc/shadow", str(Path.home() / ".bashrc")]
    with subprocess.Popen(["sleep", "600.25"]) as beside:
        hand_in(room / "ada", LOOKS.format(paths=paths, mark="600.25"))
        found = handed_in.find(room)
        ada, bo = submissions.check_all(found, hidden=[room, roster])
        beside.kill()
    assert bo.results[0].is_solved
    told = ada.results[0].message
    seen = json.loads(told[told.index("seen{") + 4 : told.index("}end") + 1])
    nobody = pwd.getpwnam("nobody")
    assert seen == {
        "user": nobody.pw_uid, "groups": [], "can_read": [], "homes": [], "others": [],
    }  # fmt: skip
    assert other.exists()


def test_root_without_such_a_user_runs_nothing(tmp_path, monkeypatch):
    """
    If the user does not exist, or cannot run this Python, root is refused before any answer runs.
    """
    hand_in(tmp_path / "room" / "ada", RIGHT)
    found = handed_in.find(tmp_path / "room")
    monkeypatch.setenv(answers_user.USER_VARIABLE, "no-such-user")
    with pytest.raises(BadInput, match=r"^Root runs no answers: .* Run: useradd --system"):
        submissions.check_all(found)
    monkeypatch.setenv(answers_user.USER_VARIABLE, "nobody")
    monkeypatch.setattr(answers_user.sys, "executable", "/root/no-python")
    with pytest.raises(BadInput, match=r"^Answers cannot run here: nobody must be able to run"):
        submissions.check_all(found)


def test_what_an_answer_leaves_as_a_link_is_not_read(tmp_path):
    """
    An answer that puts a link in place of the folder whose notes root reads afterwards has nothing
    read by it.
    """
    secret = tmp_path / "secret"
    secret.mkdir()
    state = {"version": 2, "tasks": {"00.1": {"tries": [{"at_s": 1, "mistake": "told"}]}}}
    (secret / "progress.json").write_text(json.dumps(state | {"predictions": {}}))
    links = (
        "import os, pathlib, shutil\n"
        "    folder = pathlib.Path(os.environ['DDP_LESSONS_STATE_DIR'])\n"
        "    if dist.get_rank() == 0 and not folder.is_symlink():\n"
        "        shutil.rmtree(folder, ignore_errors=True)\n"
        f"        folder.symlink_to({str(secret)!r})\n"
        "    return items"
    )
    hand_in(tmp_path / "room" / "ada", links)
    (checked,) = submissions.check_all(handed_in.find(tmp_path / "room"))
    assert not checked.results[0].is_solved
    assert checked.results[0].mistake != "told"


def test_an_answer_that_breaks_its_notebook_costs_the_others_nothing(tmp_path):
    """
    A notebook that cannot even be parsed has a row with the reason, and the others are judged.
    """
    hand_in(tmp_path / "room" / "ada", RIGHT)
    for name, text in (("bo", "[" * 100_000), ("cy", '{"nbformat": 4, "nbformat_minor": "x"}')):
        path = tmp_path / "room" / name / PATHS.blank.name
        path.parent.mkdir()
        path.write_text(text)
    ada, bo, cy = submissions.check_all(handed_in.find(tmp_path / "room"))
    assert ada.results[0].is_solved
    assert [one.results[0].mistake for one in (bo, cy)] == ["unreadable"] * 2


def test_root_runs_nothing_of_others_without_a_report(tmp_path):
    """
    Without a report, `check` runs a notebook as oneself: as root only one's own.
    """
    folder = hand_in(tmp_path / "room" / "ada", RIGHT).parent
    shown = CliRunner().invoke(app, ["check", "00", "--folder", str(folder)])
    assert shown.exit_code == 1
    assert "as root with --folder (got none)" in shown.output
    roster = tmp_path / "roster"
    roster.write_text("ada\n")
    shown = CliRunner().invoke(app, ["check", "00", "--roster", str(roster)])
    assert "expected with --roster" in shown.output
