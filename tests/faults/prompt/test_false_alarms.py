"""
Tests of cells that were once judged wrongly: no healthy cell is ended, and every hang is explained.
"""

import re

import pytest
from faults import PREPARE
from kernels import running_kernel
from usable import check_usable

pytestmark = [pytest.mark.timeout(180)]

WORLD_SIZE = 4
FREED_BY_A_THREAD = {
    "thread_that_sets_a_key": (
        "store = dist.distributed_c10d._get_default_store()\n"
        "def later():\n    time.sleep(8)\n    store.set('key', 'value')\n"
        "if rank == 0:\n    threading.Thread(target=later).start()\n"
        "store.wait(['key'])\nprint('through')",
        "ranks 0-3 all wait for a store's key (line 7), and none sets it yet; "
        "rank 0 has a thread that may still act",
    ),
    "threads_that_send": (
        "def later():\n    time.sleep(8)\n    dist.send(t, (rank + 1) % world_size)\n"
        "threading.Thread(target=later).start()\n"
        "dist.recv(t, (rank - 1) % world_size)\nprint('through')",
        "ranks 0-3 all wait in recv (line 5), and none sends yet; "
        "ranks 0-3 have a thread that may still act",
    ),
    "thread_of_a_rank_that_has_finished": (
        "def later():\n    time.sleep(8)\n    dist.send(t, 2)\n"
        "if rank == 1:\n    threading.Thread(target=later).start()\n"
        "elif rank == 2:\n    dist.recv(t, 1)\nprint('through')",
        "rank 1 finished the cell without a send; rank 2 waits in recv (line 7); "
        "rank 1 has a thread that may still act",
    ),
}
"""
Cells that continue by themselves after 8 s, each with the sentence that the stall table prints
about it meanwhile.
"""
NEVER_ENDS = {
    "targets": (
        "%%px --targets 0,1\ndist.barrier()",
        r"Deadlock: ranks 2 and 3 were not asked to run this cell; "
        r"ranks 0 and 1 wait for them in barrier \d+ \(line 1\)\.",
    ),
    "own_root": (
        "%%px\ndist.broadcast(t, src=rank)",
        r"Deadlock: ranks 0-3 called broadcast float\[4\] as collective \d+, each from itself\.",
    ),
    "store_key": (
        "%%px\nstore = dist.distributed_c10d._get_default_store()\nstore.get('never')",
        r"Deadlock: ranks 0-3 all wait for a store's key \(line 2\), and none sets it\.",
    ),
    "clashing_groups": (
        "%%px\nif rank == 0:\n    first = dist.new_group([0, 1])\n"
        "second = dist.new_group([0, 1, 2, 3])\ndist.barrier(group=second)",
        r"Deadlock: group \d+ consists of ranks 0 and 1 on rank 0, but of ranks 0-3 on .*: each "
        r"rank numbers the groups that it creates, so every rank must create every group, in the "
        r"same order\.",
    ),
}
"""
Cells that can never end by themselves, each with a pattern for the beginning of its message.
"""


def ranks_in(words):
    """
    Return the rank numbers in a text such as "1", "0 and 2", "0, 1 and 3" or "0-3".
    """
    if "-" in words:
        first, last = words.split("-")
        return list(range(int(first), int(last) + 1))
    return [int(number) for number in re.findall(r"\d+", words)]


@pytest.fixture(scope="module")
def kernel():
    """
    Yield a kernel with four ranks, which all tests of this module share, as cells of a lesson do.
    """
    with running_kernel() as kernel:
        kernel.world_size = WORLD_SIZE
        started = kernel.run(
            f"from ddp_lessons import start_ranks\nranks = start_ranks({WORLD_SIZE})"
        )
        assert started.status == "ok", started
        yield kernel


@pytest.mark.parametrize("name", FREED_BY_A_THREAD)
def test_cell_that_a_thread_frees_goes_on(kernel, name):
    """
    A cell that waits for a thread of a rank runs to its end. It is correct and only slow, yet an
    earlier version ended it as a deadlock after 1.5 s.
    """
    assert kernel.run(PREPARE + "import threading").status == "ok"
    cell, sentence = FREED_BY_A_THREAD[name]
    result = kernel.run(f"%%px\n{cell}")
    assert result.status == "ok", result
    told = [line for line in result.text.splitlines() if line.startswith("No progress")]
    # On busy cores the load-aware timeout may not have counted 5 s yet: then no table is printed.
    assert told in ([], [f"No progress for 5 s: {sentence}."]), result
    assert [line for line in result.text.splitlines() if line.startswith("[")] == [
        f"[{rank}] through" for rank in range(WORLD_SIZE)
    ]
    check_usable(kernel, lost=[])


def test_cell_that_a_child_process_frees_goes_on(kernel):
    """
    A rank that waits for a key while it has a child process is not ended: the child may set the
    key.
    """
    assert kernel.run(PREPARE + "import subprocess, tempfile").status == "ok"
    cell = (
        "%%px\nstore = dist.HashStore()\n"
        "child = subprocess.Popen(['sleep', '3'])\n"
        "try:\n    store.wait(['never'], __import__('datetime').timedelta(seconds=4))\n"
        "except dist.DistStoreError:\n    print('through')\nn = child.wait()"
    )
    result = kernel.run(cell)
    assert result.status == "ok", result
    assert result.text.splitlines() == [f"[{rank}] through" for rank in range(WORLD_SIZE)]


@pytest.mark.parametrize("name", NEVER_ENDS)
def test_hang_is_named(kernel, name):
    """
    A cell that can never end is ended with the reason of its deadlock. In an earlier version only
    the stall table showed it, and the ranks waited for half an hour.
    """
    assert kernel.run(PREPARE).status == "ok"
    cell, sentence = NEVER_ENDS[name]
    result = kernel.run(cell, stop_after_s=(60,))
    assert result.status == "error", result
    assert re.match(sentence, result.evalue), result.evalue
    replaced = re.search(r"^(?:A new rank|New ranks) (.*) (?:is|are) in place", result.evalue, re.M)
    # torch cannot interrupt new_group, so a rank that is stuck in it is replaced.
    assert replaced is None or name == "clashing_groups", result.evalue
    check_usable(kernel, lost=ranks_in(replaced[1]) if replaced else [])


def test_two_cells_on_two_halves_meet(kernel):
    """
    Two cells on two halves of the ranks meet in one barrier: a rank outside of a cell that still
    runs an earlier cell may yet join.
    """
    assert kernel.run(PREPARE).status == "ok"
    other = kernel.run("%%px --noblock --targets 0,1\ntime.sleep(4)\ndist.barrier()")
    assert other.status == "ok", other
    result = kernel.run("%%px --targets 2,3\ndist.barrier()\nprint('through')")
    assert result.status == "ok", result
    assert result.text.splitlines() == ["[2] through", "[3] through"]
    assert result.seconds > 1.0  # after 1 s a deadlock would have been ended
    check_usable(kernel, lost=[])


def test_one_rank_stuck_in_a_view_is_freed_before_the_cell_begins(kernel):
    """
    A rank that is stuck in a call of a view is released before any rank begins the next cell. In an
    earlier version the other ranks began it, and it failed.
    """
    assert kernel.run(PREPARE).status == "ok"
    stuck = (
        "def stuck():\n    import torch, torch.distributed as dist\n"
        "    if dist.get_rank() == 0:\n        dist.recv(torch.ones(4), 1)\n"
        "ranks.view.apply_sync(stuck)"
    )
    stopped = kernel.run(stuck, stop_after_s=(0.5,))
    assert stopped.ename == "KeyboardInterrupt", stopped  # so that Run All stops
    result = kernel.run("%%px\ndist.all_reduce(t)\nprint(t.tolist())")
    assert result.status == "ok", result
    lines = result.text.splitlines()
    assert lines[0] == "Ranks were stuck in a call from before this cell, and were released."
    assert lines[-WORLD_SIZE:] == [f"[{rank}] {[4.0] * 4}" for rank in range(WORLD_SIZE)]
    check_usable(kernel, lost=[])


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("os._exit(7)", "exited with code 7"),
        ("ctypes.string_at(0)", "was ended by SIGSEGV"),
    ],
)
def test_line_of_a_death_is_the_one_that_killed(kernel, line, how):
    """
    The message names the line that killed the rank, not the line of the last snapshot, which may be
    0.2 s old.
    """
    assert kernel.run(PREPARE).status == "ok"
    result = kernel.run(f"%%px\nif rank == 2:\n    time.sleep(0.5)\n    {line}\ndist.barrier()")
    told = f"rank 2 died: its process {how} at line 3: {line}"
    assert result.evalue.splitlines()[0] == told, result
    check_usable(kernel, lost=[2])
