"""
Tests with a rank that a signal or a debugger has stopped: the cell's message, and the effect of
Stop.
"""

import sys

import pytest
from kernels import running_kernel

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

PROMPT_S = 2.0
GIVEN_UP_S = 8.0  # five seconds of waiting, a new rank, and a new group
PREPARE = """%%px
import ctypes, os, signal, subprocess, sys, time
import torch.distributed as dist
rank = dist.get_rank()
keep = 100 + rank
me = os.getpid()
"""
STOPPED = "%%px\nif rank == 2:\n    os.kill(me, signal.SIGSTOP)\ndist.barrier()"
CONTINUED = """%%px
if rank == 2:
    helper = subprocess.Popen(["sh", "-c", f"sleep 6; kill -CONT {me}"])
    os.kill(me, signal.SIGSTOP)
dist.barrier()
"""
HELD = """%%px
attach = "import ctypes, os; ctypes.CDLL(None).ptrace(16, {0}, 0, 0); print(1, flush=True)"
wait = "; [os.waitpid({0}, 0) for _ in range(9)]"
if rank == 2:
    held = [sys.executable, "-c", (attach + wait).format(me)]
    debugger = subprocess.Popen(held, stdout=subprocess.PIPE)
    debugger.stdout.readline()
dist.barrier()
"""
KEPT = "%px print(keep)"


@pytest.fixture(scope="module")
def kernel():
    """
    Yield a kernel with four ranks.
    """
    with running_kernel() as kernel:
        start = "from ddp_lessons import start_ranks\nranks = start_ranks(4, device='cpu')"
        assert kernel.run(start).status == "ok"
        yield kernel


@pytest.fixture(autouse=True)
def _prepare(kernel):
    assert kernel.run(PREPARE).status == "ok"


def test_stop_makes_a_stopped_rank_go_on(kernel):
    """
    Stop resumes a rank that a signal has stopped, and interrupts it like the others: all ranks keep
    their variables.
    """
    result = kernel.run(STOPPED, stop_at="No progress")
    assert "rank 2 is stopped by a signal; ranks 0, 1 and 3 wait for it" in result.text
    assert "2     ?                  stopped by a signal  ?" in result.text
    assert result.evalue.startswith("Stopped: rank 2 is stopped by a signal; ranks 0, 1 and 3 wait")
    assert result.seconds - 5.0 < PROMPT_S + 1.0  # the table comes after five seconds
    assert kernel.run(KEPT).text == "[0] 100\n[1] 101\n[2] 102\n[3] 103\n"
    assert kernel.run("%px dist.barrier()").status == "ok"


def test_stop_a_moment_after_a_rank_was_stopped(kernel):
    """
    A Stop before the stall table is printed also ends the cell within two seconds.
    """
    result = kernel.run(STOPPED, stop_after_s=[1.0])
    assert result.ename == "CellStopped"
    assert result.seconds - 1.0 < PROMPT_S
    assert kernel.run(KEPT).text.count("\n") == 4


def test_a_stopped_rank_that_somebody_continues_is_left_alone(kernel):
    """
    A rank that is stopped for 6 s and then continued finishes the cell: without Stop the kernel
    waits for it.
    """
    result = kernel.run(CONTINUED)
    assert result.status == "ok", result
    assert "rank 2 is stopped by a signal" in result.text
    assert kernel.run(KEPT).text.count("\n") == 4


def test_an_error_beside_a_stopped_rank_ends_the_cell(kernel):
    """
    An error of another rank ends the cell in time: the stopped rank is resumed and keeps its
    variables.
    """
    result = kernel.run(STOPPED.replace("dist.barrier()", "1 / rank\ndist.barrier()"))
    assert result.ename == "RankRaised"
    assert "rank 0 raised ZeroDivisionError" in result.evalue
    assert result.seconds < PROMPT_S
    assert kernel.run(KEPT).text.count("\n") == 4


def test_an_idle_rank_that_is_stopped_is_not_said_to_have_finished(kernel):
    """
    A rank that was stopped between two cells is reported as stopped, even if the second cell does
    not target it and the others wait for it.
    """
    kernel.run("import os, signal\nos.kill(ranks.supervisor.pids[1], signal.SIGSTOP)")
    result = kernel.run("%%px --targets 0,2,3\ndist.barrier()", stop_after_s=[1.0])
    assert result.evalue.startswith("Stopped: rank 1 is stopped by a signal; ranks 0, 2 and 3 wait")
    assert kernel.run(KEPT).text.count("\n") == 4
    assert kernel.run("%px dist.barrier()").status == "ok"


def test_a_rank_that_stays_stopped_is_replaced_after_stop(kernel):
    """
    A rank whose main thread a debugger holds is replaced 5 s after Stop, because no signal can
    resume it. The other ranks keep their variables.
    """
    result = kernel.run(HELD, stop_at="No progress")
    assert "rank 2 is stopped by a debugger" in result.text
    assert "rank 2 was stopped by a debugger" in result.evalue
    assert "and did not go on within 5 s, so its process was ended" in result.evalue
    assert "A new rank 2 is in place; its variables are gone." in result.evalue
    assert result.seconds - 5.0 < GIVEN_UP_S
    kept = "%px --targets 0,1,3 print(keep)"
    assert kernel.run(kept.replace("%px", "%%px").replace(" print", "\nprint")).text == (
        "[0] 100\n[1] 101\n[3] 103\n"
    )
    assert kernel.run("%px import torch.distributed as dist; dist.barrier()").status == "ok"
