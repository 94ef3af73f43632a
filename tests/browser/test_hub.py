"""
Tests of a real JupyterHub with the workshop's configuration, and learners in Chromium.
"""

import shutil
import signal
import subprocess
from urllib.parse import urlencode

import nbformat
import pytest
from hub_room import BACK_S, START, TICK, assert_runs_on, at_lab, rank_pids, ticks, write_notebook
from hub_server import MOST_PROCESSES, Seat, processes_of
from lab_server import ROOT
from waiting import comes_true, wait_until

from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.course.notebooks.cell_roles import RAISES, tags_of

pytestmark = [pytest.mark.timeout(600)]

ROOM_S = 300.0  # for three lessons at once on two cores
GONE_S = 30.0
LESSON = "00_ranks.ipynb"
SETTINGS = """
import os, resource, shutil
print([os.environ[f"DDP_LESSONS_{name}"] for name in ("MAX_RANKS", "PARK_AFTER", "MAX_PROCESSES")])
print(resource.getrlimit(resource.RLIMIT_NPROC)[0])
!ddp-lessons --version
"""


def outputs_of(notebook):
    """
    Return a list for each code cell, with the types of its outputs.
    """
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[output.output_type for output in cell.outputs] for cell in cells]


def test_three_learners_log_in_at_once_and_run_the_first_lesson(seats, pages):
    """
    Three learners log in at once, run the first lesson, save it and stop their servers, as in the
    first ten minutes of a workshop. No process and no runtime folder of theirs is left.
    """
    cells = [c for c in read_notebook(ROOT / "notebooks" / LESSON).cells if c.cell_type == "code"]
    labs = [pages(seat) for seat in seats]
    for lab in labs:
        lab.server.log_in(lab.page)
    for lab in labs:
        at_lab(lab)
        lab.page.wait_for_url(f"**/lab/tree/my-course/notebooks/{LESSON}")
        assert lab.questions() == []
    for lab in labs:
        lab.choose("Run", "Run All Cells")
    for lab in labs:
        lab.wait_for_cell(len(cells) - 1, ROOM_S)
    meant = [RAISES in tags_of(cell) for cell in cells]
    for lab in labs:
        saved = lab.save(LESSON)
        assert ["error" in outputs for outputs in outputs_of(saved)] == meant
        assert lab.server.home.stat().st_mode & 0o077 == 0
    for lab in labs:
        assert len(processes_of(lab.server.name)) >= 2
        lab.server.stop_server(lab.page)
        gone = comes_true(lambda lab=lab: not processes_of(lab.server.name), GONE_S)
        assert gone, processes_of(lab.server.name)
        assert not list((lab.server.home / ".local/state/ddp-lessons/runtime").iterdir())


def test_learner_finds_commands_settings_and_their_own_edits(seats, pages):
    """
    A learner's edits survive the end of the server, missing files of the course come back, and the
    terminal, the settings and the limits are those of the workshop.
    """
    seat = seats[0]
    lab = pages(seat)
    seat.log_in(lab.page)
    at_lab(lab)
    lab.write_cell(0, "print('this is mine')")
    lab.save(LESSON)
    lab.page.goto(seat.address("lab/tree/my-course/README.md", query="reset&"))
    lab.page.locator(".jp-MarkdownViewer").get_by_text("Your copy of DDP Lessons").wait_for()
    lab.choose("File", "New", "Terminal")
    screen = lab.page.locator(".jp-Terminal .xterm-screen")
    screen.click()
    lab.page.keyboard.type("ddp-lessons reset 00 > found 2>&1\n")
    found = seat.home / "found"
    wait_until(lambda: found.is_file() and found.read_text(), 30, "the terminal to answer")
    assert f"{seat.course / 'exercises' / LESSON} is blank again" in found.read_text()
    seat.stop_server(lab.page)
    (seat.course / "exercises" / LESSON).unlink()  # the next login restores a missing file
    lab.page.locator("#start").click()
    at_lab(lab)
    mine = nbformat.read(seat.notebooks / LESSON, as_version=4)
    assert "this is mine" in next(c.source for c in mine.cells if c.cell_type == "code")
    assert (seat.course / "exercises" / LESSON).is_file()
    settings = write_notebook(seat, "settings.ipynb", SETTINGS)
    lab.open_file(f"my-course/notebooks/{settings.name}")
    told = lab.run_cell(0)
    assert f"['8', '30', '{MOST_PROCESSES}']\n{MOST_PROCESSES}\nddp-lessons 0." in told


def test_stranger_is_not_let_in(hub, seats, pages):
    """
    A user with a wrong password, or outside the group of learners, cannot log in: the system has
    other accounts with passwords.
    """
    seat = seats[0]
    subprocess.run(["gpasswd", "--delete", seat.name, "learners"], check=True, capture_output=True)
    for one in (seat, Seat(hub, seats[1].name, "not-the-password")):
        page = pages(one).page
        one.log_in(page)
        page.get_by_text("Invalid username or password").wait_for()
        assert processes_of(one.name) == []
    assert f"User '{seat.name}' not allowed" in hub.log()
    assert f"User '{seats[1].name}' not allowed" not in hub.log()  # its password was refused before


def test_teacher_sees_the_admin_page_and_a_learner_does_not(seats, pages):
    """
    Only teachers see the admin page, where all servers can be stopped before an update.
    """
    teacher, learner = seats[:2]
    groups = ["usermod", "--groups", "teachers", teacher.name]
    subprocess.run(groups, check=True, capture_output=True)
    page = pages(teacher).page
    teacher.log_in(page, to="hub/admin")
    page.get_by_text("Stop All").wait_for()
    page = pages(learner).page
    learner.log_in(page, to="hub/admin")
    page.get_by_text("403").first.wait_for()


def test_link_pulls_a_teachers_materials_beside_the_course(hub, seats, pages):
    """
    One link logs a learner in, makes my-course/, and pulls the teacher's own materials.
    """
    seat, folder = seats[0], hub.folder / "materials"
    folder.mkdir()
    (folder / "notes.md").write_text("# Bring a laptop\n")
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "Notes"]):
        subprocess.run([*git, *words], check=True)
    for path in (folder, *folder.rglob("*")):  # git refuses repositories of other users
        shutil.chown(path, seat.name)
    query = {"repo": f"file://{folder}", "branch": "main", "urlpath": "lab/tree/materials/notes.md"}
    lab = pages(seat)
    seat.log_in(lab.page, to=f"hub/user-redirect/git-pull?{urlencode(query)}")
    preview = lab.page.locator(".jp-MarkdownViewer").get_by_text("Bring a laptop")
    preview.wait_for(timeout=1000 * BACK_S)
    assert (seat.home / "materials" / "notes.md").is_file()
    assert (seat.notebooks / LESSON).is_file()


def test_killed_proxy_hub_and_server_take_nothing_with_them(hub, seats, pages):
    """
    A learner's cell keeps running while the proxy or the hub is killed and replaced. If the
    learner's server is killed, all its processes end.
    """
    seat = seats[0]
    lab = pages(seat)
    seat.log_in(lab.page)
    at_lab(lab)
    busy = write_notebook(seat, "busy.ipynb", START, TICK)
    lab.open_file(f"my-course/notebooks/{busy.name}")
    assert "2 ranks ready" in lab.run_cell(0)
    lab.start_cell(1)
    wait_until(lambda: ticks(seat) > 5, 30, "the cell to run")
    ranks = rank_pids(seat.name)
    assert len(ranks) >= 4

    proxy = hub.proxy()
    proxy.send_signal(signal.SIGKILL)
    wait_until(lambda: hub.proxy() not in (None, proxy) and hub.answers(), BACK_S, "a new proxy")
    assert_runs_on(seat, ranks)

    hub.kill_hub()
    assert_runs_on(seat, ranks)
    hub.start()
    assert_runs_on(seat, ranks)
    lab.page.goto(seat.address("api/status"))  # the new hub knows the login and the server
    assert "last_activity" in lab.page.content()

    (server,) = [p for p in processes_of(seat.name) if "jupyterhub.singleuser" in p.cmdline()]
    server.send_signal(signal.SIGKILL)
    gone = comes_true(lambda: not processes_of(seat.name), GONE_S)
    assert gone, processes_of(seat.name)
    assert seat.notebooks.joinpath(busy.name).is_file()
