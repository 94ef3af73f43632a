"""
Tests of a learner's reactions to a failing cell in the browser: press Stop, read, continue.
"""

import time

import pytest
from lab_page import NOT_RUN, RUNNING
from waiting import wait_until

pytestmark = [pytest.mark.timeout(300)]

PROMPT_S = 2.0
BROWSER_S = 1.5  # a click, two messages and a repaint, on a busy machine

START = "from ddp_lessons import start_ranks\nranks = start_ranks({})"
DEADLOCK = """%%px
import pathlib, time, torch
import torch.distributed as dist
pathlib.Path(f"here-{dist.get_rank()}").touch()
if dist.get_rank() == 1:
    time.sleep(60)
dist.barrier()"""
ALL_REDUCE = "%%px\nt = torch.ones(1)\ndist.all_reduce(t)\nprint(t.item())"
RAISE = "%%px\nimport torch.distributed as dist\nassert dist.get_rank() != 1, 'on purpose'"


def test_stop_button_ends_a_deadlock(lab):
    """
    The Stop button ends a cell whose ranks wait, its message is visible, and the ranks work
    afterwards.
    """
    lab.open_notebook("stop.ipynb", START.format(4), DEADLOCK, ALL_REDUCE)
    assert "4 ranks ready" in lab.run_cell(0)
    lab.start_cell(1)
    assert lab.prompts()[1] == RUNNING
    here = [lab.server.notebooks / f"here-{rank}" for rank in range(4)]
    wait_until(lambda: all(path.exists() for path in here), 30, "all ranks to be in the cell")

    began = time.monotonic()
    lab.press_stop()
    lab.wait_for_cell(1)
    assert time.monotonic() - began < PROMPT_S + BROWSER_S
    assert lab.visible_error_line(1).startswith(
        "Stopped: rank 1 is at line 5: time.sleep(60); ranks 0, 2 and 3 wait for it in barrier"
    )
    assert lab.run_cell(2) == "".join(f"[{rank}] 4.0\n" for rank in range(4))


def test_run_all_stops_at_a_cell_that_fails(lab):
    """
    Run All stops at a cell that fails, because later cells would use results that do not exist.
    """
    lab.open_notebook("fails.ipynb", START.format(2), RAISE, "print('never')", "print('now')")
    lab.run_all(until=1)
    assert lab.visible_error_line(1).startswith(
        "rank 1 raised AssertionError: on purpose at line 2"
    )
    # The next cell is the kernel's third: it has run none in between.
    assert lab.run_cell(3) == "now\n"
    assert lab.prompts() == ["[1]:", "[2]:", NOT_RUN, "[3]:"]
    assert lab.output(2) == ""
