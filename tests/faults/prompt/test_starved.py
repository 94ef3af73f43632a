"""
Ranks that are kept from the cores, in a real kernel: SIGSTOP takes all turns from a rank, and the
kernel is made to take a stopped thread for one that wants a core. So what a crowded machine does
now and then happens here every time.
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
    A kernel with four ranks and a way to starve them.
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
    Hold all four ranks to their variables and to the next collective.
    """
    result = kernel.run(ALL_REDUCE)
    assert result.status == "ok", result
    assert result.text.splitlines()[-4:] == ALL_WELL


def test_starved_rank_is_not_lost_after_a_fault(kernel):
    """
    Rank 2 raises; rank 1 has had no turn for seconds, neither its agent nor its main thread.
    """
    kernel.run("starve(1, 6.0)")
    result = kernel.run(
        "%%px\nif rank == 2:\n    raise ValueError('bad shard')\ndist.all_reduce(t)"
    )
    assert result.evalue.startswith("rank 2 raised ValueError: bad shard at line 2: "), result
    assert "new rank" not in result.evalue.lower()
    assert result.seconds > 3.0  # it was waited for
    all_is_well(kernel)


def test_starved_rank_may_still_raise_what_the_others_raised(kernel):
    """
    All four make the same mistake, and rank 3 gets there late: it is no victim of the others.
    """
    kernel.run("starve(3, 3.0)")
    result = kernel.run("%%px\nsurely_not_defined")
    assert result.evalue.startswith("ranks 0-3 raised NameError: name 'surely_not_defined'"), result
    all_is_well(kernel)


def test_starved_rank_is_in_no_deadlock(kernel):
    """
    Three ranks wait for one that is slow. They have waited long enough to be called deadlocked.
    """
    kernel.run("starve(0, 4.0)")
    result = kernel.run("%%px\ndist.all_reduce(t)\nprint('through')")
    assert result.status == "ok", result
    assert result.text.splitlines() == [f"[{rank}] through" for rank in range(4)]


def test_starved_rank_is_waited_for_when_all_join(kernel):
    """
    A join waits for the slowest, here for longer than any limit of seconds that it ever had.
    """
    kernel.run("starve(2, 7.0)")
    result = kernel.run("ranks.regroup()")
    assert result.status == "ok", result
    assert result.text == "4 ranks joined a new group.\n"
    all_is_well(kernel)


def test_starved_rank_is_stopped_by_name(kernel):
    """
    Stop asks each rank where it is, and waits for one that could not say it yet.
    """
    kernel.run("threading.Timer(1.5, starve, (1, 4.0)).start()")
    result = kernel.run("%%px\ntime.sleep(60)", stop_after_s=(2.5,))
    assert result.evalue.startswith("Stopped: ranks 0-3 were at line 1: time.sleep(60)."), result
    all_is_well(kernel)


def test_engine_threads_of_a_forked_rank_are_known_and_the_main_thread_is_not_one(kernel):
    """
    A thread of the learner's takes over the main thread's name: it must not pass for an engine's.
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
    Stop in the middle of a join leaves half a group; the next cell mends that before it runs.
    """
    kernel.run("starve(1, 3.0)")
    assert kernel.run("ranks.regroup()", stop_after_s=(1.0,)).ename == "KeyboardInterrupt"
    result = kernel.run(ALL_REDUCE)
    assert result.status == "ok", result
    assert result.text.splitlines() == ["The ranks have joined a new group.", *ALL_WELL]


def test_rank_that_we_end_is_told_as_ended_by_us(kernel):
    """
    No talk of memory that has run out when it was us who gave the rank up.
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
