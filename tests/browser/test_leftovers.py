"""
Tests that the processes of ranks end with their notebook, in whichever way, even during a cell.
"""

import signal

import pytest
from waiting import comes_true, wait_until

pytestmark = [pytest.mark.timeout(300)]

RANKS_GONE_S = 5.0
BROWSER_S = 5.0  # from a click to the kernel's action, on a busy machine
SERVER_GONE_S = 20.0
NUM_RANKS = 2
OTHERS = 2  # the controller and the supervisor
START = f"from ddp_lessons import start_ranks\nranks = start_ranks({NUM_RANKS})"
BUSY = "%%px\nimport pathlib, time\npathlib.Path('busy').touch()\ntime.sleep(600)"


@pytest.fixture
def busy_lab(new_page, make_server):
    """
    Return a page on its own server, whose ranks run a cell that does not end.
    """
    lab = new_page(make_server())
    lab.open_notebook("busy.ipynb", START, BUSY)
    assert f"{NUM_RANKS} ranks ready" in lab.run_cell(0)
    lab.start_cell(1)
    wait_until((lab.server.notebooks / "busy").exists, 30, "the cell to be busy")
    # This also proves that the searches below find such processes.
    assert len(lab.server.rank_processes()) >= NUM_RANKS + OTHERS
    return lab


def check_ranks_are_gone(server):
    gone = comes_true(lambda: not server.rank_processes(), RANKS_GONE_S + BROWSER_S)
    assert gone, server.rank_processes()


def test_restart_and_close_leave_no_process(busy_lab):
    """
    The ranks end when their kernel is restarted, and when their notebook is closed, so that they
    hold no memory of the server.
    """
    lab, server = busy_lab, busy_lab.server
    lab.choose("Kernel", "Restart Kernel…")
    lab.confirm()
    check_ranks_are_gone(server)

    lab.wait_for_kernel("idle")
    assert f"{NUM_RANKS} ranks ready" in lab.run_cell(0)
    assert len(server.rank_processes()) >= NUM_RANKS + OTHERS
    lab.save("busy.ipynb")
    lab.choose("File", "Close and Shut Down Notebook…")
    lab.confirm()
    check_ranks_are_gone(server)
    assert comes_true(server.is_alone, SERVER_GONE_S), server.processes()


def test_shut_down_leaves_no_process(busy_lab):
    """
    "Shut Down" in JupyterLab's menu ends the server and all ranks.
    """
    busy_lab.choose("File", "Shut Down")
    busy_lab.confirm()
    check_ranks_are_gone(busy_lab.server)
    assert busy_lab.server.has_ended(SERVER_GONE_S), busy_lab.server.processes()


def test_killed_server_leaves_no_process(busy_lab):
    """
    A server that is killed leaves no process, though it had no time to clean up, as when its
    terminal is closed.
    """
    assert busy_lab.server.stop(signal.SIGKILL, within_s=RANKS_GONE_S + BROWSER_S) == []
