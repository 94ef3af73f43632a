"""
The file of a learner's state: old versions are read, damaged files are kept, and unknown fields are
left out.
"""

import json
import os

import pytest
from typer.testing import CliRunner

from ddp_lessons.checks.kit import checking
from ddp_lessons.checks.kit.task_registry import find_task
from ddp_lessons.course.cli import app
from ddp_lessons.progress import notes, state


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """
    Use a state folder of the test's own, and return it.
    """
    monkeypatch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def test_a_try_is_noted_with_its_mistake_and_its_time():
    """
    A try is noted with its mistake and its time, which a teacher wants to know.
    """
    notes.note_check("02.1", passed=False, mistake="view")
    notes.note_check("02.1", passed=True)
    notes.note_check("02.1", passed=False, mistake="values")
    row = notes.row_of("02.1")
    assert [one["mistake"] for one in row["tries"]] == ["view", None, "values"]
    assert row["is_passed"]
    assert row["solved_s"] == row["tries"][1]["at_s"]
    assert row["tries"][0]["at_s"] > 1_700_000_000


def test_the_last_five_tries_are_kept():
    """
    Only the last five tries are kept, so that the file stays small.
    """
    for number in range(7):
        notes.note_check("02.1", passed=False, mistake=f"mistake-{number}")
    row = notes.row_of("02.1")
    assert row["checks"] == 7
    assert [one["mistake"] for one in row["tries"]] == [f"mistake-{n}" for n in range(2, 7)]


def test_a_hint_is_noted_with_its_time():
    """
    A hint is noted with its time, because a learner who has just read one is not stuck yet.
    """
    notes.note_hint("02.1", 4)
    assert notes.row_of("02.1")["hint_s"] > 1_700_000_000


def test_a_file_of_the_first_version_is_read_and_moved_on():
    """
    A file of the first version is read and converted, so that an update of the course loses
    nothing.
    """
    old = {
        "02.1": {"checks": 3, "is_passed": True, "hints": 1},
        "lines": {"said": 1, "first": 2, "was": 4},
    }
    state.state_file().write_text(json.dumps(old))
    assert notes.row_of("02.1")["checks"] == 3
    assert notes.predictions()["lines"]["first"] == 2
    notes.note_check("02.1", passed=False, mistake="view")
    now = json.loads(state.state_file().read_text())
    assert now["version"] == 2
    assert now["tasks"]["02.1"]["checks"] == 4
    assert now["tasks"]["02.1"]["is_passed"]
    assert now["predictions"]["lines"]["was"] == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        pytest.param("[" * 100_000, id="deep"),
        '{"version": 3}',
        '{"version": 2}',
        "\xff",
    ],
)
def test_a_file_that_cannot_be_read_is_kept_aside(folder, capsys, text):
    """
    A file that cannot be read is moved aside and never overwritten, because it may be repairable.
    """
    state.state_file().write_bytes(text.encode("latin-1"))
    notes.note_check("00.1", passed=True)
    notes.note_check("00.1", passed=True)
    assert (folder / "progress.damaged-1.json").read_bytes() == text.encode("latin-1")
    assert notes.row_of("00.1")["checks"] == 2
    said = capsys.readouterr().err
    assert said.count("could not be read") == 1
    assert "progress.damaged-1.json" in said
    state.state_file().write_text("again")
    notes.note_check("00.1", passed=True)
    assert (folder / "progress.damaged-2.json").read_text() == "again"


def test_reading_alone_moves_nothing(folder):
    """
    Reading changes no file: `ddp-lessons progress` only displays.
    """
    state.state_file().write_text("{")
    assert notes.row_of("00.1")["checks"] == 0
    assert [path.name for path in folder.iterdir()] == ["progress.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_is_not_ours_to_read_is_not_replaced():
    """
    A file that may not be read is not replaced. Renaming over it would be possible, but would take
    it from its owner.
    """
    state.state_file().write_text("{}")
    state.state_file().chmod(0)
    notes.note_check("00.1", passed=True)
    state.state_file().chmod(0o600)
    assert state.state_file().read_text() == "{}"


def test_fields_that_nobody_knows_are_left_out():
    """
    Unknown fields and invalid values are left out, so that a state carries no code, and no number
    in it breaks a page.
    """
    told = {
        "version": 2,
        "code": "import os",
        "tasks": {
            "02.1": {
                "checks": "three",
                "is_passed": 1,
                "hints": -1,
                "code": "def all_reduce(tensor): ...",
                "tries": [
                    {"at_s": 1.5e300, "mistake": "<script>", "code": "x"},
                    {"at_s": 10, "mistake": None},
                    "try",
                ],
                "solved_s": True,
                "solved_version": "0.2.0 <script>",
            },
            "02.2": "none",
            "x" * 101: {"checks": 1},
        },
        "predictions": {
            "lines": {"said": float("nan"), "first": 4, "was": float("inf")},
            "what_get_does": {"said": "b", "first": "import os", "was": "C"},
        },
    }
    found = state.parse(json.dumps(told))
    assert found["tasks"] == {
        "02.1": {
            "checks": 0,
            "is_passed": False,
            "hints": 0,
            "tries": [{"at_s": 0, "mistake": ""}, {"at_s": 10, "mistake": None}],
            "hint_s": None,
            "solved_s": None,
            "solved_version": None,
        }
    }
    lines = found["predictions"]["lines"]
    assert (lines["said"], lines["first"], lines["was"]) == (None, 4, None)
    choice = found["predictions"]["what_get_does"]
    assert (choice["said"], choice["first"], choice["was"]) == ("b", None, None)
    assert set(found) == {"version", "tasks", "predictions"}


def _solved_in_table(number):
    """
    Return the third column of a task's row in the table of `ddp-lessons progress`.
    """
    shown = CliRunner().invoke(app, ["progress"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    (row,) = [line for line in shown.output.splitlines() if f" {number} " in line]
    return row.split("│")[3].strip()


def test_a_task_that_was_solved_before_it_changed_is_marked(monkeypatch):
    """
    A task that asks for something else since the learner solved it is marked, and a pass of its new
    check ends that. The notes of version 0.1.0 name no version.
    """
    tasks = {number: {"checks": 1, "is_passed": True} for number in ("03.1", "03.3")}
    state.state_file().write_text(json.dumps({"version": 2, "tasks": tasks, "predictions": {}}))
    assert _solved_in_table("03.1") == "yes, before it changed in 0.2.0"
    assert _solved_in_table("03.2") == ""
    assert _solved_in_table("03.3") == "yes"
    notes.note_check("03.1", passed=False, mistake="to-the-right", version="0.2.0")
    assert _solved_in_table("03.1") == "yes, before it changed in 0.2.0"
    monkeypatch.setattr(checking, "run_and_judge", lambda task, ranks: "right")
    checking.check(find_task("03.1"), ranks=object())
    assert _solved_in_table("03.1") == "yes"
    notes.note_check("03.1", passed=False, mistake="deadlock", version="0.2.0")
    assert _solved_in_table("03.1") == "yes"


@pytest.mark.parametrize(
    ("version", "has_changed"),
    [(None, True), ("0.1.0", True), ("new", True), ("0.2.0", False), ("0.10.0", False)],
)
def test_versions_are_compared_by_their_numbers(version, has_changed):
    """
    Version 0.10.0 comes after 0.2.0. An unknown version counts as the first one: a learner who is
    told in vain loses less than a learner who is not told.
    """
    assert find_task("03.1").has_changed_since(version) == has_changed
    assert not find_task("03.3").has_changed_since(version)


def test_progress_as_json_names_tasks_and_places():
    """
    `ddp-lessons progress --json` lists tasks and predictions with their lessons, for a teacher's
    own program.
    """
    notes.note_check("02.1", passed=False, mistake="view")
    notes.note_prediction("lines", 4)
    shown = CliRunner().invoke(app, ["progress", "--json"])
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.output)
    assert told["tasks"]["02.1"]["name"] == "all_reduce"
    assert told["tasks"]["02.1"]["tries"][0]["mistake"] == "view"
    assert told["tasks"]["00.1"]["checks"] == 0
    assert told["tasks"]["03.1"]["changed_in"] == "0.2.0"
    assert told["predictions"]["lines"]["lesson"] == "00_ranks"
    assert told["predictions"]["lines"]["section"] == "00/1"
