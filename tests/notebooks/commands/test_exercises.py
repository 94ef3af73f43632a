"""
Tests of the terminal commands for exercises: they are run again, and answers are never lost.
"""

import json
import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from paths import ROOT
from typer.testing import CliRunner
from waiting import HANGS_AFTER_S

from ddp_lessons.checks.kit.task_registry import find_task
from ddp_lessons.course.classroom import answers_user
from ddp_lessons.course.cli import app
from ddp_lessons.course.learner import exercises, notebook_runs
from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.errors import BadInput
from ddp_lessons.jobs.owned import run_owned
from ddp_lessons.progress import notes

PLACE = exercises.find_exercise("00", ROOT)


@pytest.fixture(autouse=True)
def state_folder(tmp_path, monkeypatch):
    """
    Set a state folder for this test only. Answers are the learner's own, so they run as the test.
    """
    monkeypatch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv(answers_user.USER_VARIABLE, "root")


@pytest.fixture
def mine(tmp_path):
    """
    Return a learner's folder with one starter, and no other file of the course in or above it.
    """
    folder = tmp_path / "my exercises"
    folder.mkdir()
    shutil.copy(PLACE.blank, folder)
    return folder


def invoke(*arguments, **options):
    """
    Run the command line in this process, and return its result.
    """
    return CliRunner().invoke(app, list(map(str, arguments)), **options)


def edit(path, old, new):
    """
    Replace a text in the cells of a notebook.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace(old, new)
    nbformat.write(notebook, path)


def solve(folder):
    """
    Replace the gap by the solution, as a learner does.
    """
    old = 'raise NotImplementedError("Task 00.1 is still blank")'
    new = "return items[dist.get_rank() :: dist.get_world_size()]"
    edit(folder / "00_ranks.ipynb", old, new)


def test_check_says_what_is_open_and_gives_the_hint(mine):
    """
    `check` on an unchanged starter says which task is open, and prints the first hint.
    """
    shown = invoke("check", "00", "--folder", mine)
    assert shown.exit_code == 1
    assert "00.1 my_items: open" in shown.output
    assert "my_items is still blank" in shown.output
    assert "Hint: Replace the line that raises NotImplementedError" in shown.output


def test_check_passes_a_solved_notebook_that_was_copied_elsewhere(mine):
    """
    A solved notebook passes in any folder, because it needs only the package, and the progress is
    stored.
    """
    solve(mine)
    shown = invoke("check", "00_ranks", "--folder", mine)
    assert shown.exit_code == 0, shown.output
    assert "00.1 my_items: solved" in shown.output
    assert "1 of" in invoke("progress").output


def test_check_counts_no_stored_output(mine):
    """
    A forged output does not count: the notebook is run again.
    """
    path = mine / "00_ranks.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for count, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), start=1):
        cell.execution_count = count
        if cell.source == "check.my_items()":
            text = "ok: 00.1 my_items, each item on exactly one rank, without a message\n"
            cell.outputs = [nbformat.v4.new_output("stream", text=text)]
    nbformat.write(notebook, path)
    assert invoke("check", "00", "--folder", mine).exit_code == 1


def test_check_refuses_a_notebook_whose_check_was_changed(mine):
    """
    A notebook whose check cell was changed is refused: it would prove nothing.
    """
    solve(mine)
    edit(mine / "00_ranks.ipynb", "check.my_items()", 'print("ok: 00.1 my_items")')
    shown = invoke("check", "00", "--folder", mine)
    assert shown.exit_code == 1
    assert "was changed or is missing" in shown.output


@pytest.mark.parametrize("tag", ["nbval-skip", "raises-exception"])
def test_check_refuses_a_check_that_need_not_hold(mine, monkeypatch, tag):
    """
    A check cell with a tag that lets any error pass in nbval is refused.
    """
    path = mine / "00_ranks.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [cell for cell in notebook.cells if cell.source == "check.my_items()"]
    cell.metadata["tags"] = [*cell.metadata.get("tags", []), tag]
    nbformat.write(notebook, path)
    monkeypatch.setattr(notebook_runs, "run_notebook", lambda path: ({}, ""))  # nothing fails
    shown = invoke("check", "00", "--folder", mine)
    assert shown.exit_code == 1
    assert "was changed or is missing" in shown.output


def test_a_check_that_nbval_excuses_is_open(mine, monkeypatch):
    """
    A check that nbval reports as skipped counts as open: after a cell timeout nbval reports failing
    cells below it as skipped.
    """

    def write_report(command, **options):
        (report,) = [word.partition("=")[2] for word in command if word.startswith("--junitxml=")]
        cases = "".join(
            f'<testcase name="Cell {number}"><skipped message="Timeout"/></testcase>'
            for number in range(20)
        )
        Path(report).write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        return subprocess.CompletedProcess(command, 1, "", "")

    solve(mine)
    monkeypatch.setattr(notebook_runs.subprocess, "run", write_report)
    shown = invoke("check", "00", "--folder", mine)
    assert shown.exit_code == 1
    assert "a cell above it took longer than 60 s" in shown.output


def test_pytest_alone_tells_a_blank_from_a_solution(mine):
    """
    pytest with nbval alone fails on a starter and passes on a solution, as a teacher's CI job calls
    it.
    """
    command = [sys.executable, "-P", "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider"]
    command += ["-c", "/dev/null", "--rootdir", str(mine), "00_ranks.ipynb"]
    assert run_owned(command, cwd=mine, env=None, deadline_s=HANGS_AFTER_S) == 1
    solve(mine)
    assert run_owned(command, cwd=mine, env=None, deadline_s=HANGS_AFTER_S) == 0


def test_pytest_with_nbval_alone_reads_exercises_of_a_clone():
    """
    pytest with nbval alone can collect exercises in a clone, where pytest also reads our
    configuration with options of plugins that learners do not have.
    """
    command = [sys.executable, "-m", "pytest", "-p", "no:timeout", "-p", "no:xdist", "--nbval"]
    command += ["--collect-only", "-q", "-p", "no:cacheprovider", "exercises/00_ranks.ipynb"]
    assert run_owned(command, cwd=ROOT, env=None, deadline_s=HANGS_AFTER_S) == 0


def test_check_names_the_exercises_that_there_are():
    """
    An unknown exercise is answered with the list of known ones.
    """
    shown = invoke("check", "99")
    assert shown.exit_code == 1
    assert "Unknown exercise: expected one of 00_ranks" in shown.stderr


def test_check_needs_the_notebook_in_the_folder_that_was_named(tmp_path):
    """
    `check --folder` looks into the named folder only, and suggests `ddp-lessons copy`.
    """
    shown = invoke("check", "00", "--folder", tmp_path)
    assert shown.exit_code == 1
    assert "ddp-lessons copy" in shown.stderr


def test_check_and_reset_find_a_learners_copy_of_the_course(tmp_path, monkeypatch):
    """
    In the learner's copy of the course, or in a folder below it, the commands need no `--folder`.
    """
    course = tmp_path / "mine"
    assert invoke("copy", course).exit_code == 0
    blank = (course / "exercises" / "00_ranks.ipynb").read_bytes()
    for folder in (course, course / "notebooks", course / "exercises"):
        monkeypatch.chdir(folder)
        solve(course / "exercises")
        shown = invoke("reset", "00")
        assert "your answer is in 00_ranks.kept" in shown.output, shown.output
        assert (course / "exercises" / "00_ranks.ipynb").read_bytes() == blank


def test_check_refuses_what_is_no_notebook(mine):
    """
    A damaged notebook file is reported as such, with the command that brings a new one.
    """
    (mine / "00_ranks.ipynb").write_text("{")
    shown = invoke("check", "00", "--folder", mine)
    assert shown.exit_code == 1
    assert "Not a notebook" in shown.stderr
    assert "`ddp-lessons reset 00_ranks` brings a new one, and keeps this file" in shown.stderr


def test_check_takes_the_line_ends_of_other_systems(mine):
    """
    Line ends of Windows do not make a check cell count as changed.
    """
    solve(mine)
    path = mine / "00_ranks.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("\n", "\r\n")
    nbformat.write(notebook, path)
    shown = invoke("check", "0", "--folder", mine)
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize("name", ["link", "replace"])
def test_reset_in_somebody_else_s_folder_is_refused_in_one_line(mine, monkeypatch, name):
    """
    `reset` in a folder that the learner cannot write, such as a shared course of root's, prints one
    line and no traceback.
    """

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(
        *{"link": (exercises.os, "link"), "replace": (Path, "replace")}[name], refuse
    )
    solve(mine)
    shown = invoke("reset", "00", "--folder", mine)
    assert shown.exit_code == 1
    told = f"ddp-lessons reset: Cannot write there: expected a folder of your own (got {mine}: "
    assert shown.output.startswith(told)
    assert "Run `ddp-lessons copy ~/my-course`, and work there." in shown.output
    assert "Traceback" not in shown.output


def test_reset_brings_the_blank_back_and_keeps_the_answer(mine):
    """
    `reset` restores the starter and saves the answer, each time in a new file.
    """
    path, answers = mine / "00_ranks.ipynb", []
    for number in (1, 2):
        edit(path, "This rank", f"Try {number}: this rank")
        solve(mine)
        answers.append(path.read_bytes())
        shown = invoke("reset", "00", "--folder", mine)
        assert f"your answer is in 00_ranks.kept-{number}.ipynb" in shown.output
        assert read_notebook(path).cells == read_notebook(PLACE.blank).cells
    kept = [(mine / f"00_ranks.kept-{number}.ipynb").read_bytes() for number in (1, 2)]
    assert kept == answers
    shown = invoke("reset", "00", "--folder", mine)  # the notebook has no answer to save
    assert shown.output.startswith(f"{path} is blank again\nif it is open in JupyterLab: ")


def test_solution_asks_first():
    """
    `solution` asks before it shows the solution, so that a typing error does not reveal it.
    """
    refused = invoke("solution", "00.1", input="n\n")
    assert "get_world_size" not in refused.output
    assert "4 more hints" in refused.output
    assert "get_world_size" in invoke("solution", "00.1", input="y\n").output


def test_hints_come_one_at_a_time_and_the_last_one_stays():
    """
    `hint` shows one more hint at each call, from the concept to the key line, and then repeats the
    last one.
    """
    hints = find_task("00.1").hints
    for number, expected in enumerate([*hints, hints[-1]], start=1):
        shown = invoke("hint", "0.1").output  # without leading zero, as people say it
        assert f"Hint {min(number, len(hints))} of {len(hints)}: {expected}" in shown
    assert "That was the last one." in shown
    assert invoke("hint", "99.9").exit_code == 1


def test_a_learners_edit_survives_an_update_by_git(tmp_path):
    """
    `git pull` keeps an edited notebook if the update changes others, and refuses to overwrite it
    otherwise.
    """
    course, clone = tmp_path / "course", tmp_path / "clone"
    course.mkdir()
    shutil.copy(PLACE.blank, course / "00_ranks.ipynb")
    (course / "other.ipynb").write_text("1")

    def git(folder, *arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=False
        )

    git(course, "init", "-q")
    git(course, "add", ".")
    git(course, "commit", "-qm", "first")
    git(tmp_path, "clone", "-q", str(course), str(clone))
    solve(clone)
    answer = (clone / "00_ranks.ipynb").read_bytes()
    (course / "other.ipynb").write_text("2")
    git(course, "commit", "-qam", "another exercise")
    assert git(clone, "pull", "-q", "--no-rebase").returncode == 0
    assert (clone / "other.ipynb").read_text() == "2"
    edit(course / "00_ranks.ipynb", "Distribute items to", "Distribute the items to")
    git(course, "commit", "-qam", "the same exercise")
    assert git(clone, "pull", "-q", "--no-rebase").returncode != 0
    assert (clone / "00_ranks.ipynb").read_bytes() == answer


def _note_many(number):
    for _ in range(number):
        notes.note_check("00.1", passed=False)


def test_progress_loses_nothing_between_two_writers():
    """
    Two processes that note checks at the same time lose none, because two kernels may check at
    once.
    """
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_note_many, args=(50,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert notes.row_of("00.1")["checks"] == 100


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2, "tasks": 3}'])
def test_progress_with_a_damaged_file_begins_anew(text):
    """
    A damaged progress file does not stop a check: progress begins again.
    """
    notes.state_file().parent.mkdir(parents=True)
    notes.state_file().write_text(text)
    assert notes.row_of("00.1")["checks"] == 0
    notes.note_check("00.1", passed=True)
    assert json.loads(notes.state_file().read_text())["tasks"]["00.1"]["is_passed"]


def test_place_of_an_unknown_exercise_is_refused():
    """
    find_exercise refuses an unknown exercise, and names the known ones.
    """
    with pytest.raises(BadInput, match="expected one of 00_ranks"):
        exercises.find_exercise("nope", ROOT)
