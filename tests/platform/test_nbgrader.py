"""
A test with nbgrader, where it is installed: it gives the same points as our own check.
"""

import csv
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig

import nbformat
import pytest
from paths import ROOT

from ddp_lessons.course.classroom import (
    answers_user,
    grade_reports,
    handed_in,
    nbgrader_sources,
    submissions,
)
from ddp_lessons.course.learner.exercises import find_exercise

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("nbgrader") is None,
        reason="needs nbgrader, which brings many packages that nothing else here needs",
    ),
]
CONFIG = "c.ExecutePreprocessor.timeout = 60\n"  # the setting in docs/board.md
WAITS = """%%px
import torch
import torch.distributed as dist


def {name}(*given, **more):
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), src=1)
"""


@pytest.fixture
def course(tmp_path):
    """
    Return the folder of an nbgrader course with our exercises as its sources.
    """
    nbgrader_sources.write_sources(tmp_path, ROOT)
    (tmp_path / "nbgrader_config.py").write_text(CONFIG)
    return tmp_path


def run(course, *words):
    """
    Run nbgrader as a teacher does, and assert that it succeeds.
    """
    scripts = sysconfig.get_path("scripts")  # nbgrader calls alembic by its name
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    command = [sys.executable, "-m", "nbgrader", *map(str, words)]
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def hand_in(course, learner, stem, change):
    """
    Hand in a released exercise for a learner.

    Args:
        course: The course's folder.
        learner: The learner's name.
        stem: The exercise.
        change: Function that changes the notebook; it gets the answer cells and the notebook.
    """
    notebook = nbformat.read(course / "release" / stem / f"{stem}.ipynb", as_version=4)
    answers = [c for c in notebook.cells if "raise NotImplementedError" in c.source]
    change(answers, notebook)
    path = course / "submitted" / learner / stem / f"{stem}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


def solutions(stem):
    """
    Return the sources of the answer cells in the solved exercise.
    """
    cells = nbformat.read(find_exercise(stem, ROOT).notebook, as_version=4).cells
    return [cell.source for cell in cells if "# solution" in cell.source]


def solve(*numbers):
    """
    Return a change that solves the tasks of these numbers, counted from 0. Task 1, if it is not
    among them, gets an answer in which rank 0 waits for ever.
    """

    def change(answers, notebook):
        right = solutions("02_collectives")
        for number, cell in enumerate(answers):
            if number in numbers:
                cell.source = right[number]
            elif number == 1:
                name = re.search(r"def (\w+)", cell.source)[1]
                cell.source = WAITS.format(name=name)

    return change


def cheat(answers, notebook):
    """
    Solve one task, and make the cell of another check print a forged success.
    """
    solve(2)(answers, notebook)
    (cell,) = (cell for cell in notebook.cells if cell.source.strip() == "check.all_reduce()")
    cell.source = 'print("ok: 02.1 all_reduce, 2 collectives a rank")'


def points(text):
    """
    Return {(exercise, learner): (points, maximum)} of a table of points.
    """
    rows = csv.DictReader(text.splitlines())
    return {
        (row["assignment"], row["student_id"]): (float(row["score"]), float(row["max_score"]))
        for row in rows
    }


def test_nbgrader_gives_the_points_that_our_check_gives(course, monkeypatch):
    """
    nbgrader and our own check give the same points, so that a learner's points do not depend on the
    teacher's choice.
    """
    monkeypatch.setenv(answers_user.USER_VARIABLE, "root")  # as nbgrader runs them
    stem = "02_collectives"
    run(course, "generate_assignment", stem)
    hand_in(course, "ada", stem, solve(0, 1, 2, 3))
    hand_in(course, "bo", stem, lambda answers, notebook: None)
    hand_in(course, "cy", stem, solve(0, 2))
    hand_in(course, "di", stem, cheat)
    run(course, "autograde", stem, "--create")
    run(course, "export", "--to", course / "grades.csv")
    ours = grade_reports.points_text(submissions.check_all(handed_in.find(course / "submitted")))
    found = points((course / "grades.csv").read_text())
    assert found == points(ours)
    assert [found[stem, name][0] for name in ("ada", "bo", "cy", "di")] == [4, 0, 2, 1]


def test_a_term_with_nbgrader_from_release_to_feedback(course, tmp_path_factory):
    """
    An exercise goes through nbgrader's exchange to a learner and back, is graded with ranks, and
    the learner fetches the feedback: each step by nbgrader's own command, as docs/board.md has it.
    """
    stem, exchange = "02_collectives", tmp_path_factory.mktemp("exchange")
    exchange.chmod(0o777)
    home = tmp_path_factory.mktemp("learner")
    settings = (
        CONFIG + f"c.CourseDirectory.course_id = 'ddp'\nc.Exchange.root = {str(exchange)!r}\n"
    )
    for folder in (course, home):
        (folder / "nbgrader_config.py").write_text(settings)
    run(course, "generate_assignment", stem)
    run(course, "release_assignment", stem)
    run(home, "fetch_assignment", stem, "--course", "ddp")
    path = home / stem / f"{stem}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    solve(0, 2)([c for c in notebook.cells if "raise NotImplementedError" in c.source], notebook)
    nbformat.write(notebook, path)
    run(home, "submit", stem, "--course", "ddp")
    run(course, "collect", stem)
    run(course, "autograde", stem, "--create")
    run(course, "export", "--to", course / "grades.csv")
    ((_, score),) = points((course / "grades.csv").read_text()).items()
    assert score == (2, 4)
    run(course, "generate_feedback", stem)
    run(course, "release_feedback", stem)
    run(home, "fetch_feedback", stem, "--course", "ddp")
    (page,) = home.rglob(f"{stem}.html")
    assert "Task 02.2, all_gather_unequal, is not solved yet." in page.read_text()
