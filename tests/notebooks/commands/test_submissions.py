"""
Tests of submissions: they are found, checked in separate processes, and written into reports.
"""

import csv
import errno
import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jsonschema
import nbformat
import pytest
import yaml
from handed_in_exercises import PATHS, RIGHT, hand_in
from paths import ROOT
from typer.testing import CliRunner
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.course.classroom import (
    answers_user,
    grade_reports,
    handed_in,
    nbgrader_sources,
    submissions,
)
from ddp_lessons.course.classroom.handed_in import Submission
from ddp_lessons.course.classroom.submissions import Checked
from ddp_lessons.course.cli import app
from ddp_lessons.course.learner import exercises, notebook_runs
from ddp_lessons.course.learner.exercises import Result
from ddp_lessons.course.learner.limited_run import Limits
from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.errors import BadInput


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch):
    """
    Set a state folder for this test only, and run answers as the test's own user, who may be root.
    """
    monkeypatch.setenv(answers_user.USER_VARIABLE, "root")
    monkeypatch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path / "state"))


@pytest.mark.timeout(1200)  # five notebooks, each with a limit of 240 s
def test_submissions_are_checked_apart_and_told(tmp_path):
    """
    Each submission is checked in its own process with its own result: a right answer, a gap, a
    wrong answer, too much memory, and a file that is no notebook.
    """
    room = tmp_path / "room"
    hand_in(room / "ada", RIGHT)
    hand_in(room / "bo")
    hand_in(room / "cy", "return items")
    greedy = "keep = bytearray(b'1') * (900 * 2**20); return items"
    before = hand_in(room / "di", greedy).read_bytes()
    (room / "ed").mkdir()
    (room / "ed" / PATHS.blank.name).write_text('{"check.my_items(": ')
    said = []
    limits = Limits(memory_mib=2000)
    checked = submissions.check_all(handed_in.find(room), limits, said.append)
    told = {one.submission.learner: one.results[0] for one in checked}
    assert [one.submission.learner for one in checked] == ["ada", "bo", "cy", "di", "ed"]
    assert len(said) == 5
    assert told["ada"].is_solved
    assert [told[name].is_solved for name in ("bo", "cy", "di", "ed")] == [False] * 4
    assert told["bo"].mistake == "blank"
    assert told["cy"].mistake in exercises.tasks_of_stem("00_ranks")[0].own_hints
    assert "Hint: " in told["cy"].message
    assert told["di"].mistake == "too-much-memory"
    assert "2000 MiB at most is expected" in told["di"].message
    assert told["ed"].mistake == "unreadable"
    # The submissions are unchanged, and so is the teacher's own progress.
    assert (room / "di" / PATHS.blank.name).read_bytes() == before
    assert [path.name for path in (room / "cy").iterdir()] == [PATHS.blank.name]
    assert not (tmp_path / "state").exists()
    rows = {row.name: row.state["tasks"]["00.1"] for row in submissions.rows(checked)}
    assert rows["ada"]["is_passed"]
    assert rows["bo"]["checks"] == 0
    assert rows["cy"]["tries"][0]["mistake"] == told["cy"].mistake
    lines = csv.DictReader(grade_reports.points_text(checked).splitlines())
    comments = {line["student_id"]: line["comment"] for line in lines}
    assert comments["ada"] == ""
    assert "2000 MiB at most is expected" in comments["di"]
    assert comments["ed"].startswith("Not a notebook: ")


def test_what_nobody_has_begun_is_not_run(tmp_path, monkeypatch):
    """
    An exercise whose gaps are as the course has left them is not run: a learner of a hub has all
    exercises, and a day is enough for three.
    """
    monkeypatch.setattr(notebook_runs, "run_notebook", None)  # any call would raise TypeError
    hand_in(tmp_path / "room" / "bo")
    arguments = ["check", "00", "--folder", tmp_path / "room", "--points", tmp_path / "points.csv"]
    shown = CliRunner().invoke(app, list(map(str, arguments)))
    assert shown.exit_code == 1
    assert "bo, 00_ranks: not begun (" in shown.output
    (line,) = csv.DictReader((tmp_path / "points.csv").read_text().splitlines())
    assert (line["student_id"], line["score"]) == ("bo", "0")


def test_a_check_that_could_not_read_all_says_so(tmp_path, monkeypatch):
    """
    If a learner's folder may not be read, the command names the learner and ends with 1, although
    all that was read is solved.
    """
    task = exercises.tasks_of_stem("00_ranks")[0]
    unread = Submission("bo", PATHS, Path("x"), is_unread=True)
    checked = [made_up("ada", Result(task, True)), Checked(unread, [Result(task, True)], 1, 1)]
    hand_in(tmp_path / "room" / "ada")
    monkeypatch.setattr(submissions, "check_all", lambda *args, **options: checked)
    arguments = ["check", "00", "--folder", tmp_path / "room", "--points", tmp_path / "points.csv"]
    shown = CliRunner().invoke(app, list(map(str, arguments)))
    assert shown.exit_code == 1
    assert "Not all was read: bo. Collect with workshop/collect.sh, or run" in shown.output
    del checked[1]
    assert CliRunner().invoke(app, list(map(str, arguments))).exit_code == 0


@pytest.mark.parametrize("with_points", [True, False])
def test_a_folder_that_may_not_be_looked_at_is_refused(tmp_path, monkeypatch, with_points):
    """
    A path below a private home is refused with the reason, and without a traceback.
    """
    private, real = str(tmp_path / "home"), os.stat

    def stat(path, *args, **options):
        if str(path).startswith(private):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *args, **options)

    def listdir(path):
        stat(path)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "listdir", listdir)
    folder = f"{private}/exercises"
    if with_points:
        arguments = ["check", folder, "--points", str(tmp_path / "points.csv")]
    else:
        monkeypatch.setattr(answers_user, "find_user", lambda: None)
        arguments = ["check", "00", "--folder", folder]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 1
    assert isinstance(shown.exception, SystemExit)
    assert "Permission denied" in shown.output
    assert not (tmp_path / "points.csv").exists()


def test_an_interrupted_check_writes_nothing(tmp_path, monkeypatch):
    """
    Ctrl-C leaves yesterday's report as it was, and no empty one, and says so.
    """
    hand_in(tmp_path / "room" / "ada", RIGHT)
    (tmp_path / "points.csv").write_text("yesterday's")

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(submissions, "check_all", interrupt)
    arguments = ["check", tmp_path / "room", "--points", tmp_path / "points.csv"]
    arguments += ["--junit", tmp_path / "results.xml"]
    shown = CliRunner().invoke(app, list(map(str, arguments)))
    assert shown.exit_code == 130
    assert "Interrupted: nothing is written" in shown.output
    assert (tmp_path / "points.csv").read_text() == "yesterday's"
    assert not (tmp_path / "results.xml").exists()


def test_a_submission_cannot_forge_what_is_noted(tmp_path):
    """
    A submission that writes a progress file does not count as solved: only the result of its check
    counts.
    """
    forge = (
        "import json, os, pathlib\n"
        "    path = pathlib.Path(os.environ['DDP_LESSONS_STATE_DIR']) / 'progress.json'\n"
        "    row = {'checks': 1, 'is_passed': True, 'tries': [{'at_s': 1, 'mistake': None}]}\n"
        "    path.parent.mkdir(parents=True, exist_ok=True)\n"
        "    told = {'version': 2, 'tasks': {'00.1': row}, 'predictions': {}}\n"
        "    path.write_text(json.dumps(told))\n"
        "    return items"
    )
    hand_in(tmp_path / "ada", forge)
    (checked,) = submissions.check_all(handed_in.find(tmp_path / "ada"))
    assert not checked.results[0].is_solved
    (row,) = submissions.rows([checked])
    assert not row.state["tasks"]["00.1"]["is_passed"]


def test_check_writes_a_report_and_points(tmp_path):
    """
    `ddp-lessons check FOLDER --junit results.xml --points points.csv` writes a JUnit report and a
    table of points.
    """
    hand_in(tmp_path / "room" / "ada", RIGHT)
    hand_in(tmp_path / "room" / "bo")
    paths = {name: tmp_path / name for name in ("results.xml", "points.csv")}
    arguments = ["check", tmp_path / "room", "--junit", paths["results.xml"]]
    arguments += ["--points", paths["points.csv"]]
    shown = CliRunner().invoke(app, list(map(str, arguments)))
    assert shown.exit_code == 1
    assert "ada, 00_ranks: 1 of 1 tasks solved" in shown.output
    root = ElementTree.parse(paths["results.xml"]).getroot()
    assert [suite.get("failures") for suite in root] == ["0", "1"]
    with paths["points.csv"].open(newline="") as file:
        scores = {line["student_id"]: line["score"] for line in csv.DictReader(file)}
    assert scores == {"ada": "1", "bo": "0"}


def test_where_nothing_can_be_written_nothing_is_checked(tmp_path, monkeypatch):
    """
    A path that cannot be written is refused before the first check, not after an hour's work.
    """
    hand_in(tmp_path / "room" / "ada", RIGHT)
    monkeypatch.setattr(submissions, "check_all", None)  # any call would raise TypeError
    for option in ("--junit", "--points"):
        arguments = ["check", tmp_path / "room", option, tmp_path / "nowhere" / "results"]
        shown = CliRunner().invoke(app, list(map(str, arguments)))
        assert shown.exit_code == 1
        assert "Cannot write" in shown.output


def test_what_was_written_before_is_kept_until_there_is_more(tmp_path, monkeypatch):
    """
    A file of points stays until new ones are complete: a teacher whose check is refused still has
    yesterday's, and no empty report beside it.
    """
    hand_in(tmp_path / "room" / "ada", RIGHT)
    points = tmp_path / "points.csv"
    points.write_text("yesterday's")

    def stop(*args, **kwargs):
        raise BadInput("stopped")

    monkeypatch.setattr(submissions, "check_all", stop)
    report = tmp_path / "results.xml"
    arguments = ["check", tmp_path / "room", "--points", points, "--junit", report]
    shown = CliRunner().invoke(app, list(map(str, arguments)))
    assert shown.exit_code == 1
    assert points.read_text() == "yesterday's"
    assert not report.exists()


def test_the_board_shows_what_was_handed_in(tmp_path):
    """
    `board --folder` shows submissions without a hub and without a network.
    """
    hand_in(tmp_path / "room" / "ada", RIGHT)
    hand_in(tmp_path / "room" / "bo", "return items")
    table = tmp_path / "board.csv"
    arguments = ["board", "--folder", tmp_path / "room", "--csv", table]
    shown = CliRunner().invoke(app, list(map(str, arguments)))
    assert shown.exit_code == 0, shown.output
    with table.open(newline="") as file:
        found = {line["name"]: line for line in csv.DictReader(file)}
    assert (found["ada"]["state"], found["bo"]["state"]) == ("solved", "tried")
    assert found["bo"]["last_mistake"] == "all-items"


def test_ctrl_c_ends_those_that_run_and_begins_no_others(tmp_path, monkeypatch):
    """
    Ctrl-C ends the running checks and starts no others, so that a teacher who named the wrong
    folder need not wait for thirty notebooks.
    """
    begun, said = [], []

    def run_notebook(path, apart):
        begun.append(path)
        if "of learner-0" not in path.read_text(encoding="utf-8"):
            wait_until(apart.is_over, HANGS_AFTER_S, "the end")
        return {}, ""

    def say(checked):
        said.append(checked.submission.learner)
        if checked.submission.learner == "learner-0":
            raise KeyboardInterrupt

    monkeypatch.setattr(notebook_runs, "run_notebook", run_notebook)
    for number in range(9):
        hand_in(tmp_path / f"learner-{number}", f"of learner-{number}")
    with pytest.raises(KeyboardInterrupt):
        submissions.check_all(handed_in.find(tmp_path), say=say)
    assert len(begun) <= 3
    assert said == ["learner-0"]  # the others were ended early, and have no verdict


@pytest.mark.parametrize("fails", [1, 9])
def test_a_kernel_that_does_not_start_costs_nobody_a_point(tmp_path, monkeypatch, fails):
    """
    If a kernel does not start, as on an overloaded machine, the submission is tried once more.
    After that it is an error and no mistake of the learner's.
    """
    dead = tmp_path / "jupyter" / "kernels" / "dead"
    dead.mkdir(parents=True)
    told = {"argv": ["false"], "display_name": "dead", "language": "python"}
    (dead / "kernel.json").write_text(json.dumps(told))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    commands, real = [], notebook_runs.nbval_command

    def sometimes(*given):
        commands.append(real(*given))
        if len(commands) <= fails:
            at = commands[-1].index("--nbval-current-env")
            commands[-1][at] = "--nbval-kernel-name=dead"
        return commands[-1]

    monkeypatch.setattr(notebook_runs, "nbval_command", sometimes)
    hand_in(tmp_path / "room" / "ada", RIGHT)
    (one,) = submissions.check_all(handed_in.find(tmp_path / "room"))
    (result,) = one.results
    assert len(commands) == 2
    assert result.is_solved == (fails == 1)
    if fails > 1:
        assert result.mistake == "unreadable"
        assert 'its kernel must start (failed on setup with "RuntimeError: Kernel' in result.message
        assert "<error " in grade_reports.junit_text([one])


def made_up(learner="ada", *results):
    """
    Return a Checked with given results, without a run.
    """
    return Checked(Submission(learner, PATHS, Path("x")), list(results), 2.0, 1_790_000_000.0)


def test_a_report_tells_failures_from_errors():
    """
    In a JUnit report an open task is a failure, and a task that could not be run is an error.
    """
    task = exercises.tasks_of_stem("00_ranks")[0]
    told = "Task 00.1 is not solved yet.\nrank 0 gave: <b>\x1b[0m\x00 & more\nHint: think."
    text = grade_reports.junit_text(
        [
            made_up("ada", Result(task, True)),
            made_up("b<o", Result(task, False, told, "values")),
            made_up("cy", Result(task, False, "It was ended.", "too-much-time")),
        ]
    )
    ada, bo, cy = ElementTree.fromstring(text.encode())
    assert (ada.get("tests"), ada.get("failures"), ada.get("errors")) == ("1", "0", "0")
    assert bo.get("name") == "b<o/00_ranks"
    failure = bo.find("testcase/failure")
    assert failure.get("type") == "values"
    assert failure.get("message") == "Task 00.1 is not solved yet."
    assert "<b>?[0m? & more" in failure.text
    assert cy.find("testcase/error").get("type") == "too-much-time"
    assert bo.find("testcase").get("name") == "00.1 my_items"


def test_points_are_one_a_task():
    """
    A solved task is one point, in a table with the column names of nbgrader's export. A last column
    says why there is no point at all, without line ends.
    """
    task = exercises.tasks_of_stem("00_ranks")[0]
    lines = grade_reports.points_text([made_up("ada", Result(task, True), Result(task, False))])
    assert lines.splitlines() == [
        "assignment,student_id,raw_score,late_submission_penalty,score,max_score,comment",
        "00_ranks,ada,1,0,1,2,",
    ]
    unread = Result(task, False, "Not a notebook:\nit is empty.", "unreadable")
    assert grade_reports.points_text([made_up("bo", unread, unread)]).endswith(
        ",Not a notebook: it is empty.\n"
    )


def test_pages_are_for_learners_who_have_handed_in_something(tmp_path, monkeypatch):
    """
    A learner who has begun nothing gets no page of feedback, and keeps none of an earlier check's:
    the pages of this folder are copied into homes.
    """
    monkeypatch.setattr(notebook_runs, "run_notebook", lambda path, apart: ({}, ""))
    hand_in(tmp_path / "room" / "ada", RIGHT)
    hand_in(tmp_path / "room" / "bo")
    (tmp_path / "room" / "cy").mkdir()
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "bo.html").write_text("yesterday's")
    arguments = ["check", tmp_path / "room", "--feedback", pages]
    shown = CliRunner().invoke(app, list(map(str, arguments)))
    assert "1 pages of feedback are in" in shown.output
    assert [path.name for path in pages.iterdir()] == ["ada.html"]


def test_notebooks_for_nbgrader_have_a_point_on_each_check(tmp_path):
    """
    Each check cell is worth one point and follows nbgrader's published schema, and cells of answers
    have no mark of nbgrader's.
    """
    assert nbgrader_sources.write_sources(tmp_path, ROOT) == len(exercises.all_exercises(ROOT))
    schema = json.loads(Path(__file__).with_name("nbgrader_v3.json").read_text())
    for place in exercises.all_exercises(ROOT):
        notebook = read_notebook(tmp_path / "source" / place.stem / place.blank.name)
        nbformat.validate(notebook)
        marks = [
            (cell, cell.metadata["nbgrader"])
            for cell in notebook.cells
            if "nbgrader" in cell.metadata
        ]
        for cell, mark in marks:
            jsonschema.validate(mark, schema)
            assert (mark["solution"], mark["task"]) == (False, False)
            assert mark["locked"]
            assert mark["grade"] == ("points" in mark) == cell.source.startswith("check.")
            assert mark["grade_id"]
        ids = [mark["grade_id"] for _, mark in marks]
        assert len(set(ids)) == len(ids)
        tasks = exercises.tasks_of_stem(place.stem)
        assert sum(mark.get("points", 0) for _, mark in marks) == len(tasks)
        answers = [cell for cell in notebook.cells if "NotImplementedError" in cell.source]
        assert answers
        assert not any("nbgrader" in cell.metadata for cell in answers)
    with pytest.raises(BadInput, match="It is there already"):
        nbgrader_sources.write_sources(tmp_path, ROOT)


def test_the_workflow_file_calls_what_there_is():
    """
    The example workflow file calls commands and options that exist, because teachers copy it.
    """
    text = (ROOT / "docs" / "classroom.yml").read_text()
    steps = yaml.safe_load(text)["jobs"]["check"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert any("ddp-lessons check --junit results.xml" in command for command in commands)
    shown = CliRunner().invoke(app, ["check", "--help"], env={"COLUMNS": "200"}).output
    assert "--junit" in shown
