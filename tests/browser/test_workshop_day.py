"""
A test of a whole day with the workshop's hub, from the first login to the feedback.

A failure names its stage. The course is a copy of ours, because a teacher edits it.
"""

import contextlib
import csv
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import nbformat
import pytest
from handed_in_exercises import GAP, RIGHT
from hub_config import BOARD_SETTINGS
from hub_room import BACK_S, at_lab
from hub_server import HubServer, why_not
from paths import ROOT
from playwright.sync_api import expect

pytestmark = [pytest.mark.timeout(1500)]

NUM_LEARNERS = 6
ROOM_S = 300.0
LESSON = "00_ranks.ipynb"
EXERCISE = "my-course/exercises/00_ranks.ipynb"
OLD, NEW = "What happens when four processes", "What happens today when four processes"
NOT_COPIED = shutil.ignore_patterns(
    ".venv", ".git", "build", "__pycache__", ".*_cache", ".hypothesis"
)


@contextlib.contextmanager
def stage(name):
    """
    Add the name of the stage to the error of a failure.
    """
    try:
        yield
    except BaseException as error:
        error.add_note(f"at the stage: {name}")
        raise


def run(*words, cwd=None, status=0, **environment):
    """
    Run a command as root, assert its exit status, and return what it prints.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DDP_", "PYTHON", "GIT_"))}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=env | environment, capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def course(tmp_path):
    """
    Yield a git clone of the course that every user can read.
    """
    with tempfile.TemporaryDirectory(prefix="ddp-day-") as folder:
        Path(folder).chmod(0o755)
        copy = Path(folder) / "course"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED, symlinks=True)
        git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")
        for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "first")):
            run(*git, *words, cwd=copy)
        yield copy


@pytest.fixture
def hub(chromium, course):
    """
    Yield a hub with the board, whose learners get that course.
    """
    if reason := why_not():
        pytest.skip(reason)
    folder = course.parent / "hub"
    folder.mkdir()
    hub = HubServer(folder, BOARD_SETTINGS, course)
    try:
        yield hub
    finally:
        hub.kill()


def answer(lab, source):
    """
    Write an answer to task 00.1 into the learner's exercise, and run it and its check.
    """
    path = lab.server.home / EXERCISE
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    lab.open_file(EXERCISE)
    lab.run_cell(0)
    lab.write_cell(1, cells[1].source.replace(GAP, source))
    lab.run_cell(1)
    return lab.run_cell(2)


def save_exercise(lab):
    """
    Save the learner's exercise from the menu.
    """
    with lab.page.expect_response(lambda answer: answer.request.method == "PUT") as answered:
        lab.choose("File", "Save Notebook")
    assert answered.value.ok


def assert_board(page):
    """
    Assert that the teacher's page gets to show one solved and one tried task.
    """
    page.get_by_label("Lesson").select_option("00_ranks", timeout=1000 * BACK_S)
    expect(page.locator("td.tried")).to_have_text(["1 all-items"], timeout=1000 * BACK_S)
    expect(page.locator("td.solved")).to_have_count(1, timeout=1000 * BACK_S)


def test_a_day_from_the_first_login_to_the_feedback(hub, course, seats, pages):
    """
    Six log in; two of them run a lesson and an exercise; the board shows both, and again after the
    hub was killed; an edit of the teacher's arrives; exercises are collected and checked, and the
    learner reads the feedback.
    """
    ada, bo, teacher = seats[0], seats[1], seats[-1]
    run("usermod", "--groups", "teachers", teacher.name)
    labs = {seat: pages(seat) for seat in seats}
    first, second = labs[ada], labs[bo]
    with stage("six log in"):
        for seat in seats:
            seat.log_in(labs[seat].page)
        for lab in labs.values():
            at_lab(lab)
    for seat in seats[2:]:
        seat.stop_server(labs[seat].page)
    with stage("two run the lesson"):
        cells = nbformat.read(ada.notebooks / LESSON, as_version=4).cells
        num_cells = sum(cell.cell_type == "code" for cell in cells)
        for lab in (first, second):
            lab.choose("Run", "Run All Cells")
        for lab in (first, second):
            lab.wait_for_cell(num_cells - 1, ROOM_S)
            lab.save(LESSON)
    with stage("two answer the exercise"):
        assert "ok: 00.1" in answer(first, RIGHT)
        assert "Hint: " in answer(second, "return items")
        for lab in (first, second):
            save_exercise(lab)
    page = labs[teacher].page
    with stage("the board shows both"):
        page.goto(f"http://127.0.0.1:{hub.port}/services/board/")
        assert_board(page)
    with stage("the board is back after the hub was killed"):
        hub.kill_hub()
        hub.start()
        page.reload()
        assert_board(page)
    with stage("an edit arrives"):
        lesson = course / "notebooks" / LESSON
        lesson.write_text(lesson.read_text().replace(OLD, NEW))
        ddp_lessons = (hub.python, "-m", "ddp_lessons.course.cli")
        assert "published" in run(*ddp_lessons, "publish", course, cwd=course)
        assert OLD in lesson.read_text()
        assert run("git", "status", "--porcelain", cwd=course) == ""
        first.open_file(EXERCISE)  # Lab has put a complaint over it, for the hub was away
        assert "News of the course" in first.run_cell(0)
        assert OLD in (ada.notebooks / LESSON).read_text()  # its kernel is there, so it is open
        assert NEW in (ada.notebooks / "00_ranks.new.ipynb").read_text()
        bo.stop_server(second.page)
        second.page.locator("#start").click()
        at_lab(second)
        assert NEW in (bo.notebooks / LESSON).read_text()
    # These are the page's commands. The hub's environment takes the place of the clone's .venv.
    collect, command = course / "workshop" / "collect.sh", hub.python.with_name("ddp-lessons")
    active = {"VIRTUAL_ENV": str(hub.python.parents[1])}
    with stage("exercises are collected and checked"):
        told = run(collect, hub.folder / "in", cwd=course, **active)
        folder, points, pages_of = told.split()[-1], hub.folder / "points.csv", hub.folder / "pages"
        words = ("check", folder, "--points", points, "--feedback", pages_of)
        env = {"DDP_LESSONS_ANSWERS_USER": "nobody"}
        told = run(command, *words, cwd=course, status=1, **env)  # a task is open
        assert "Exercises without a row, because no learner has begun them: 17." in told
        has_page = [seat for seat in seats if (pages_of / f"{seat.name}.html").exists()]
        assert has_page == [ada, bo]
        with points.open(newline="") as file:
            scores = {row["student_id"]: row["score"] for row in csv.DictReader(file)}
        expected = {seat.name: "0" for seat in seats[:-1]} | {ada.name: "1"}
        assert {name: scores[name] for name in expected} == expected
    with stage("the learner reads the feedback"):
        run(collect, "--feedback", pages_of, cwd=course, **active)
        assert not (seats[2].course / "feedback").exists()  # this learner has begun nothing
        (feedback,) = (bo.course / "feedback").iterdir()
        second.page.goto(bo.address(f"lab/tree/my-course/feedback/{feedback.name}", "reset&"))
        shown = second.page.frame_locator(".jp-HTMLViewer iframe")
        shown.get_by_text("00.1 my_items: open").wait_for()
        shown.get_by_text("Hint: ").wait_for()
