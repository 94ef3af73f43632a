"""
Helpers for tests of a hub with several learners: logins, notebooks, and cells that keep running.
"""

import os

import nbformat
import psutil
from hub_server import processes_of
from waiting import wait_until

BACK_S = 120.0  # the hub checks its proxy every 30 s
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
    Write a notebook into a learner's folder, owned by the learner, and return its path.

    Args:
        seat: The learner's Seat.
        name: The notebook's file name.
        sources: Sources of its code cells.
    """
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path = seat.notebooks / name
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), path)
    os.chown(path, seat.home.stat().st_uid, seat.home.stat().st_gid)
    return path


def rank_pids(name):
    """
    Return the process ids of a learner's supervisor, controller and ranks.
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
    Return the last number that rank 0's cell of TICK has written.
    """
    try:
        return int((seat.notebooks / "tick-0").read_text() or 0)
    except FileNotFoundError:
        return 0


def assert_runs_on(seat, ranks):
    """
    Assert that the learner's cell of TICK keeps running, on the same ranks.

    Args:
        seat: The learner's Seat.
        ranks: The process ids that `rank_pids` returned before.
    """
    before = ticks(seat)
    wait_until(lambda: ticks(seat) > before + 5, 30, "the cell to go on")
    assert rank_pids(seat.name) == ranks
