"""
Tests in which one learner exhausts a resource of the server, and others lose nothing but time.
"""

import subprocess

import pytest
from hub_room import START, TICK, assert_runs_on, at_lab, rank_pids, ticks, write_notebook
from hub_server import MOST_PROCESSES, processes_of
from lab_page import RUNNING
from waiting import comes_true, wait_until

pytestmark = [pytest.mark.timeout(600)]

FAULT_S = 300.0
GONE_S = 60.0
KEEP = "%%px\nimport torch.distributed as dist\nkept = 40 + dist.get_rank()"
ASK = "%%px\nprint(kept)"
STILL_HERE = "print(6 * 7)"
STILL_THERE = "%%px\nprint(6 * 7)"
FORK_FOR_EVER = """
import os
children = []
try:
    while True:
        children.append(os.fork())
        if children[-1] == 0:
            os.execvp("sleep", ["sleep", "600"])
except OSError as error:
    print(type(error).__name__, len(children))
"""
IDLE = '.jp-NotebookPanel:not(.lm-mod-hidden) [data-status="idle"]'
PRINT_1_GB = "for _ in range(100_000):\n    print('x' * 9_999)"
FILL_MEMORY = "kept = []\nwhile True:\n    kept.append(b'x' * 2**26)"
FILL_MEMORY_ON_A_RANK = (
    "%%px --targets 0\nimport torch\nkept = []\nwhile True:\n    kept.append(torch.ones(2**24))"
)
FILL_HOME = """
import pathlib
big = pathlib.Path.home() / "big"
try:
    with big.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**12))
except OSError as error:
    print(error.strerror)
"""
DELETE = """
import pathlib
(pathlib.Path.home() / "big").unlink()
print("room again")
"""


@pytest.fixture
def beside(seats, pages):
    """
    Yield the pages of two learners. The second one's ranks run a cell, which must survive the test.
    """
    wild, other = (pages(seat) for seat in seats[:2])
    for lab in (wild, other):
        lab.server.log_in(lab.page)
    for lab in (wild, other):
        at_lab(lab)
    busy = write_notebook(other.server, "busy.ipynb", START, KEEP, TICK, ASK)
    other.open_file(f"my-course/notebooks/{busy.name}")
    assert "2 ranks ready" in other.run_cell(0)
    other.run_cell(1)
    other.start_cell(2)
    wait_until(lambda: ticks(other.server) > 5, 60, "the cell to run")
    ranks = rank_pids(other.server.name)
    yield wild, other
    assert_runs_on(other.server, ranks)
    other.press_stop()
    other.wait_for_cell(2)
    assert other.run_cell(3) == "[0] 40\n[1] 41\n"
    assert rank_pids(other.server.name) == ranks


def test_one_who_forks_for_ever_stops_alone(beside):
    """
    A learner who forks without end reaches the limit of processes, which counts for each learner
    alone, and can stop their server.
    """
    wild, _ = beside
    notebook = write_notebook(wild.server, "mine.ipynb", FORK_FOR_EVER)
    wild.open_file(f"my-course/notebooks/{notebook.name}")
    name, number = wild.run_cell(0).split()
    assert name == "BlockingIOError"
    assert MOST_PROCESSES / 2 < int(number) < MOST_PROCESSES
    wild.server.stop_server(wild.page)
    wait_until(lambda: not processes_of(wild.server.name), GONE_S, "their processes to end")


def run_until_it_ends(lab, number):
    """
    Run a cell that prints too much until it or its kernel ends, and wait for an idle kernel.

    Args:
        lab: The LabPage.
        number: Number of the code cell, from 0.
    """
    lab.start_cell(number)
    wait_until(lambda: lab.prompts()[number] != RUNNING, FAULT_S, "the cell, or its kernel, to end")
    told = lab.page.locator(".jp-Dialog", has_text="appears to have died. It will restart")

    def is_told():  # by the server, perhaps late, or by JupyterLab if the kernel has died
        return "data rate exceeded" in lab.output(number) or told.count()

    wait_until(is_told, FAULT_S, "the learner to be told")

    def is_ready():  # a kernel that holds the printed text may die after its cell
        if told.count():
            lab.confirm()
        return lab.page.locator(IDLE).count()

    if not comes_true(is_ready, GONE_S):  # the kernel had no memory left to report its state
        lab.choose("Kernel", "Restart Kernel…")
        lab.confirm()
        wait_until(is_ready, FAULT_S, "a new kernel to be idle")


def test_one_who_prints_for_ever_is_stopped_alone(beside):
    """
    A learner who prints 1 GB gets a part of it in the browser, and then a working kernel. The
    kernel holds the rest, on a busy machine up to its memory limit.
    """
    wild, _ = beside
    notebook = write_notebook(wild.server, "mine.ipynb", PRINT_1_GB, STILL_HERE)
    wild.open_file(f"my-course/notebooks/{notebook.name}")
    run_until_it_ends(wild, 0)
    assert wild.run_cell(1) == "42\n"


def test_one_who_fills_memory_is_stopped_alone(beside):
    """
    A learner who fills memory gets a MemoryError, and the kernel works afterwards.
    """
    wild, _ = beside
    notebook = write_notebook(wild.server, "mine.ipynb", FILL_MEMORY, STILL_HERE)
    wild.open_file(f"my-course/notebooks/{notebook.name}")
    wild.start_cell(0)
    wild.wait_for_cell(0, FAULT_S)
    assert "MemoryError" in wild.output(0)
    assert wild.run_cell(1) == "42\n"


def test_one_whose_rank_fills_memory_is_stopped_alone(beside):
    """
    If a rank fills memory, its cell fails, and all ranks of that learner work afterwards.
    """
    wild, _ = beside
    notebook = write_notebook(wild.server, "mine.ipynb", START, FILL_MEMORY_ON_A_RANK, STILL_THERE)
    wild.open_file(f"my-course/notebooks/{notebook.name}")
    assert "2 ranks ready" in wild.run_cell(0)
    wild.start_cell(1)
    wild.wait_for_cell(1, FAULT_S)
    assert "can't allocate memory" in wild.output(1)
    assert wild.run_cell(2) == "[0] 42\n[1] 42\n"


@pytest.fixture
def small_home(seats):
    """
    Yield the seat of a learner whose home has room for little more than the course.
    """
    seat, size = seats[2], "size=64m"
    owner = seat.home.stat()
    options = f"{size},uid={owner.st_uid},gid={owner.st_gid},mode=700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(seat.home)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no small disk can be made here: {done.stderr}")
    yield seat
    subprocess.run(["umount", "--lazy", str(seat.home)], check=True)


def test_one_whose_home_is_full_is_told_and_makes_room(beside, small_home, pages):
    """
    A learner with a full home is told why nothing can be saved, and can log in again and delete
    files.
    """
    lab = pages(small_home)
    lab.server.log_in(lab.page)
    at_lab(lab)
    notebook = write_notebook(small_home, "mine.ipynb", FILL_HOME, START, DELETE)
    lab.open_file(f"my-course/notebooks/{notebook.name}")
    assert lab.run_cell(0) == "No space left on device\n"
    lab.choose("File", "Save Notebook")
    lab.page.locator(".jp-Dialog").wait_for()
    assert "disk is full" in lab.questions()[0]
    lab.page.keyboard.press("Escape")
    assert "Ranks could not be started: No space left on device" in lab.run_cell(1)
    lab.server.stop_server(lab.page)
    lab.page.locator("#start").click()
    at_lab(lab)
    lab.open_file(f"my-course/notebooks/{notebook.name}")
    assert lab.run_cell(2) == "room again\n"
    lab.save(notebook.name)
    assert "2 ranks ready" in lab.run_cell(1)
