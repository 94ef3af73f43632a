"""
What tests of a room do again and again: at a login, with notebooks, and with cells that run on.
"""

import os

import nbformat
import psutil
from hub_server import processes_of
from waiting import wait_until

BACK_S = 120.0  # the hub looks after its proxy every 30 s
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
START = "from ddp_lessons import start_ranks\nranks = start_ranks(2)"
TICK = """%%px
import pathlib, time
import torch.distributed as dist
for tick in range(100000):
    pathlib.Path(f"tick-{dist.get_rank()}").write_text(str(tick))
    time.sleep(0.1)
"""


def at_lab(lab):
    """
    Wait until JupyterLab is open at a notebook with a kernel, as after a login.
    """
    lab.page.locator(".jp-Toolbar-kernelName", has_text="Python 3").wait_for(timeout=1000 * BACK_S)
    lab.wait_for_kernel("idle")


def write_notebook(seat, name, *sources):
    """
    Write a notebook of the learner's own into their folder.
    """
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path = seat.notebooks / name
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), path)
    os.chown(path, seat.home.stat().st_uid, seat.home.stat().st_gid)
    return path


def rank_pids(name):
    """
    Return the process ids of a learner's supervisor and of all that it started.
    """
    found = []
    for process in processes_of(name):
        try:
            if any("ddp_lessons.ranks" in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return sorted(found)


def ticks(seat):
    """
    Return the last tick of rank 0, as its cell writes it.
    """
    try:
        return int((seat.notebooks / "tick-0").read_text() or 0)
    except FileNotFoundError:
        return 0


def assert_runs_on(seat, ranks):
    """
    Assert that the learner's cell runs on, on the same ranks.
    """
    before = ticks(seat)
    wait_until(lambda: ticks(seat) > before + 5, 30, "the cell to go on")
    assert rank_pids(seat.name) == ranks
