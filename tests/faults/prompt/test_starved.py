"""
Tests of ranks that get no core, in a real kernel.

SIGSTOP takes all turns from a rank, and the kernel is changed to count a stopped thread as one that
waits for a core. So each test produces at once the load that a crowded machine has now and then.
"""

import pytest
from faults import PREPARE
from kernels import running_kernel

pytestmark = [pytest.mark.timeout(180)]

STARVE = """
import os, signal, threading
from ddp_lessons.ranks.system import thread_stats
del thread_stats.HALTS["T"]
thread_stats._WANTS_A_CORE += ("T",)
def starve(rank, seconds):
    pid = ranks.supervisor.pids[rank]
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()
"""
ALL_REDUCE = "%%px\nx = torch.ones(3)\ndist.all_reduce(x)\nprint(x.tolist(), keep)"
ALL_WELL = [f"[{rank}] [4.0, 4.0, 4.0] {100 + rank}" for rank in range(4)]


@pytest.fixture(scope="module")
def kernel():
    """
    Yield a kernel with four ranks and a function `starve`.
    """
    with running_kernel() as kernel:
        start = "from ddp_lessons import start_ranks\nranks = start_ranks(4, device='cpu')"
        assert kernel.run(start).status == "ok"
        assert kernel.run(STARVE).status == "ok"
        yield kernel


@pytest.fixture(autouse=True)
def _prepared(kernel):
    assert kernel.run(PREPARE).status == "ok"


def all_is_well(kernel):
    """
    Assert that all four ranks have kept their variables, and that the next collective works.
    """
    result = kernel.run(ALL_REDUCE)
    assert result.status == "ok", result
    assert result.text.splitlines()[-4:] == ALL_WELL


def test_starved_rank_is_not_lost_after_a_fault(kernel):
    """
    A rank that had no turn for seconds while another rank raised is waited for, and not replaced.
    """
    kernel.run("starve(1, 6.0)")
    result = kernel.run(
        "%%px\nif rank == 2:\n    raise ValueError('bad shard')\ndist.all_reduce(t)"
    )
    assert result.evalue.startswith("rank 2 raised ValueError: bad shard at line 2: "), result
    assert "new rank" not in result.evalue.lower()
    assert result.seconds > 3.0  # the kernel waited for rank 1
    all_is_well(kernel)


def test_starved_rank_may_still_raise_what_the_others_raised(kernel):
    """
    If all ranks raise the same error, a late rank is listed with the others: it is no collateral of
    their errors.
    """
    kernel.run("starve(3, 3.0)")
    result = kernel.run("%%px\nsurely_not_defined")
    assert result.evalue.startswith("ranks 0-3 raised NameError: name 'surely_not_defined'"), result
    all_is_well(kernel)


def test_starved_rank_is_in_no_deadlock(kernel):
    """
    Ranks that wait for a starved rank are no deadlock, though they wait longer than ranks in a real
    one.
    """
    kernel.run("starve(0, 4.0)")
    result = kernel.run("%%px\ndist.all_reduce(t)\nprint('through')")
    assert result.status == "ok", result
    assert result.text.splitlines() == [f"[{rank}] through" for rank in range(4)]


def test_starved_rank_is_waited_for_when_all_join(kernel):
    """
    A regrouping waits for a rank that is starved for 7 s, longer than any fixed time limit that it
    ever had.
    """
    kernel.run("starve(2, 7.0)")
    result = kernel.run("ranks.regroup()")
    assert result.status == "ok", result
    assert result.text == "4 ranks joined a new group.\n"
    all_is_well(kernel)


def test_starved_rank_is_stopped_by_name(kernel):
    """
    The message of Stop names the line of every rank: Stop waits for the snapshot of a starved one.
    """
    kernel.run("threading.Timer(1.5, starve, (1, 4.0)).start()")
    result = kernel.run("%%px\ntime.sleep(60)", stop_after_s=(2.5,))
    assert result.evalue.startswith("Stopped: ranks 0-3 were at line 1: time.sleep(60)."), result
    all_is_well(kernel)


def test_engine_threads_of_a_forked_rank_are_known_and_the_main_thread_is_not_one(kernel):
    """
    In a forked rank the agent and engine threads have names by which they are known, and the main
    thread has another: threads of the learner inherit its name, and must not count as the engine's.
    """
    said = kernel.run(
        "%%px\nfrom pathlib import Path\ntasks = Path('/proc/self/task')\n"
        "names = [(task / 'comm').read_text() for task in tasks.iterdir()]\n"
        "main = (tasks / str(os.getpid()) / 'comm').read_text()\n"
        "print('ddp-agent\\n' in names, 'ddp-engine\\n' in names, main.startswith('ddp'))"
    )
    assert said.text.splitlines() == [f"[{rank}] True True False" for rank in range(4)]


def test_join_that_was_stopped_is_done_by_the_next_cell(kernel):
    """
    A Stop during a regrouping leaves an incomplete group, and the next cell regroups before it
    runs.
    """
    kernel.run("starve(1, 3.0)")
    assert kernel.run("ranks.regroup()", stop_after_s=(1.0,)).ename == "KeyboardInterrupt"
    result = kernel.run(ALL_REDUCE)
    assert result.status == "ok", result
    assert result.text.splitlines() == ["The ranks have joined a new group.", *ALL_WELL]


def test_rank_that_we_end_is_told_as_ended_by_us(kernel):
    """
    If the kernel had to end a rank, the message says so, and does not suggest that memory ran out.
    """
    result = kernel.run(
        "%%px\nif rank == 3:\n    sleep = ctypes.PyDLL(None).sleep\n    while sleep(60):\n"
        "        pass\nif rank == 1:\n    raise ValueError('bad shard')\ndist.barrier()"
    )
    lines = result.evalue.splitlines()
    assert lines[0].startswith("rank 1 raised ValueError: bad shard at line 6: "), result
    assert lines[1] == (
        "rank 3 could not be released at line 3: while sleep(60):, so its process was ended"
    )
    assert "memory" not in result.evalue
    assert "A new rank 3 is in place; its variables are gone." in lines
