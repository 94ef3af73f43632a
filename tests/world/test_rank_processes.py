"""
Processes of ranks behave as a kernel's do: what they import, what their cells fork, and how they
end.
"""

import pytest
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.ranks.kernel.cells import CellRun, run_cell

OPENS = """
import atexit, os, torch.distributed as dist
rank = dist.get_rank()
log = open(f"{folder}/log-{rank}", "w")
log.write("of a cell")
atexit.register(lambda: open(f"{folder}/exit-{rank}", "w").write("of its end"))
"""
TERMINATES = """
import multiprocessing, time
for _ in range(20):
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
    process.start()
    process.terminate()
    process.join()
"""
INTERRUPTS = """
import os, signal, torch.distributed as dist
if dist.get_rank() == 1:
    pid = os.fork()
    if pid == 0:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            while True: pass
        except KeyboardInterrupt:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
dist.barrier()
"""


@pytest.fixture
def ranks():
    """
    Start two ranks.
    """
    yield start_ranks(2)
    stop_ranks()


def saved(folder):
    """
    Return the texts that the ranks have written, by file name.
    """
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


ALL_SAVED = {f"exit-{rank}": "of its end" for rank in (0, 1)}
ALL_SAVED |= {f"log-{rank}": "of a cell" for rank in (0, 1)}


def test_ranks_that_are_stopped_save_what_is_open(ranks, tmp_path):
    """
    Ranks that are stopped write their open files and run the functions of `atexit`.
    """
    run_cell(ranks, f"folder = {str(tmp_path)!r}\n{OPENS}")
    stop_ranks()
    assert saved(tmp_path) == ALL_SAVED
    assert [(row.state, row.pid) for row in ranks.status().rows] == [("ended", None)] * 2


def test_ranks_that_are_stopped_in_a_cell_save_what_is_open(ranks, tmp_path):
    """
    If ranks are stopped in a cell, the cell is interrupted. Its loop would keep the rank from
    ending.
    """
    run_cell(ranks, f"folder = {str(tmp_path)!r}\n{OPENS}")
    cell = "open(f'{folder}/begun-{rank}', 'w').close()\nwhile True: pass"
    CellRun(ranks, cell, [0, 1]).submit()
    wait_until(lambda: len(saved(tmp_path)) == 4, HANGS_AFTER_S, "both ranks")
    stop_ranks()
    assert saved(tmp_path) == ALL_SAVED | {"begun-0": "", "begun-1": ""}


@pytest.mark.parametrize("cell", [TERMINATES, INTERRUPTS])
def test_signals_to_a_forked_process_are_its_own(ranks, cell):
    """
    Signals to a forked process affect only that process: `terminate` ends it, and its Ctrl-C does
    not release the rank.
    """
    run_cell(ranks, cell)


def test_own_files_named_as_libraries_break_no_start(tmp_path, monkeypatch):
    """
    Learners have files such as random.py and email.py. Ranks start nevertheless, and modules next
    to the notebook can be imported.
    """
    for name in ("random", "email", "queue", "select", "their_module"):
        (tmp_path / f"{name}.py").write_text("OWN = True\n")
    monkeypatch.chdir(tmp_path)
    ranks = start_ranks(2)
    try:
        run_cell(ranks, "import random, their_module\nassert their_module.OWN\nrandom.random()")
    finally:
        stop_ranks()
