"""
Tests of faults that need more than one cell: deaths between cells, views, and stall tables.
"""

import contextlib
import re
from pathlib import Path

import pytest
from fault_player import PROMPT_S
from faults import MODEL, PREPARE
from kernels import running_kernel
from usable import check_usable
from waiting import wait_until

pytestmark = [pytest.mark.timeout(180)]

TWO = pytest.param(2, id="2_ranks")
FOUR = pytest.param(4, id="4_ranks")


@pytest.fixture(scope="module", params=[TWO, FOUR])
def kernel(request):
    """
    Yield a kernel with ranks, on which the faults happen one after another, as in a lesson.
    """
    with running_kernel() as kernel:
        kernel.world_size = request.param
        result = kernel.run(
            f"from ddp_lessons import start_ranks\nranks = start_ranks({request.param})"
        )
        assert result.status == "ok", result
        yield kernel


def test_fault_of_an_idle_rank_is_told_by_the_next_cell(kernel):
    """
    If a rank was killed between two cells, the next cell raises and does not run on the new rank.
    """
    assert kernel.run(PREPARE).status == "ok"
    culprit = kernel.world_size // 2
    assert kernel.run(f"import os\nos.kill(ranks.supervisor.pids[{culprit}], 9)").status == "ok"
    wait_until(lambda: kernel.value("ranks.dead") == [culprit], 5.0, "news of the death")
    result = kernel.run("%%px\ndist.all_reduce(t)")
    assert result.ename == "RankDied"
    assert result.evalue.splitlines()[0].startswith(
        f"rank {culprit} died: its process was ended by SIGKILL"
    )
    assert "This cell was not run" in result.evalue
    assert result.seconds < PROMPT_S
    check_usable(kernel, lost=[culprit])


def test_fault_out_of_memory_is_told(kernel):
    """
    A rank that the system kills for its memory is named with that reason, and the others go on.
    """
    assert kernel.run(PREPARE).status == "ok"
    culprit = kernel.world_size // 2
    with memory_limit(kernel.value(f"ranks.supervisor.pids[{culprit}]"), 600 << 20):
        result = kernel.run(
            f"%%px\nif rank == {culprit}:\n    hog = b'x' * (1 << 30)\ndist.all_reduce(t)"
        )
    assert result.ename == "RankDied", result
    first_line = result.evalue.splitlines()[0]
    assert first_line.startswith(
        f"rank {culprit} died: its process was ended by SIGKILL (Linux or a hub does this"
    )
    check_usable(kernel, lost=[culprit])


@contextlib.contextmanager
def memory_limit(pid, limit_bytes):
    """
    Limit a process's memory by a new control group. The system kills the process if it exceeds it.

    Args:
        pid: The process.
        limit_bytes: The most bytes that it may hold.
    """
    root = Path("/sys/fs/cgroup")
    if (root / "memory").exists():  # version 1
        root, limit = root / "memory", "memory.limit_in_bytes"
    else:
        limit = "memory.max"
    group = root / f"ddp-lessons-test-{pid}"
    before = root / "cgroup.procs"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        if not (group / limit).exists():
            pytest.skip("this system's control groups do not limit memory")
        (group / limit).write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            before.write_text(left)
        group.rmdir()


def test_fault_stall_table_comes_without_stop(kernel):
    """
    After 5 s without progress the stall table names the rank that the others wait for, without a
    Stop, and the cell continues as soon as that rank does.
    """
    assert kernel.run(PREPARE).status == "ok"
    culprit = kernel.world_size // 2
    for seconds in (5.8, 12, 25):  # on a busy machine the 5 s may begin again
        result = kernel.run(
            f"%%px\nif rank == {culprit}:\n    time.sleep({seconds})\ndist.barrier()"
        )
        assert result.status == "ok", result
        if lines := result.text.splitlines():
            break
    assert lines[0].startswith(
        f"No progress for 5 s: rank {culprit} is at line 2: time.sleep({seconds}); "
    )
    assert lines[1].split() == ["rank", "line", "in", "waits", "for"]
    assert len(lines) == 2 + kernel.world_size
    check_usable(kernel, lost=[])


def test_fault_stall_table_names_a_rank_that_holds_its_interpreter(kernel):
    """
    The stall table has the line of a rank in C code that holds the GIL, though its agent cannot
    answer.
    """
    assert kernel.run(PREPARE).status == "ok"
    culprit = kernel.world_size // 2
    result = kernel.run(
        f"%%px\nif rank == {culprit}:\n    ctypes.PyDLL(None).sleep(50)\ndist.barrier()",
        stop_at="No progress",
    )
    assert (
        f"No progress for 5 s: rank {culprit} is at line 2: ctypes.PyDLL(None).sleep(50); "
        in result.text
    )
    # Only the main thread's stack: a dump of running threads may crash the rank.
    stack = kernel.value(f"open(str(ranks.supervisor.folder) + '/rank-{culprit}.stack').read()")
    assert stack.count("most recent call first") == stack.count("Stack (most") > 0


def test_fault_no_table_for_a_cell_that_computes(kernel):
    """
    No stall table is printed while the rank that the others wait for computes, however long it
    takes.
    """
    assert kernel.run(PREPARE).status == "ok"
    result = kernel.run(
        "%%px\nend = time.monotonic() + 5.8\nwhile rank == 0 and time.monotonic() < end:\n"
        "    torch.ones(300, 300) @ torch.ones(300, 300)\ndist.barrier()\nprint('through')"
    )
    assert result.status == "ok"
    assert result.text.splitlines() == [f"[{r}] through" for r in range(kernel.world_size)]


def test_fault_next_cell_after_stop_runs(kernel):
    """
    A cell that is run right after Stop runs: it must not vanish without output or error.
    """
    assert kernel.run(PREPARE).status == "ok"
    for _ in range(3):
        stopped = kernel.run("%%px\ntime.sleep(60)", stop_after_s=(0.2,))
        assert stopped.ename == "CellStopped"
        after = kernel.run("%%px\nprint('here')")
        assert after.text.splitlines() == [f"[{rank}] here" for rank in range(kernel.world_size)]


def test_fault_old_model_after_regroup_raises(kernel):
    """
    A DDP model that holds a group from before a regrouping raises when it is used, with its name.
    """
    assert kernel.run(PREPARE).status == "ok"
    assert kernel.run(MODEL).status == "ok"
    assert (
        kernel.run("%%px\nif rank == 0:\n    raise ValueError('x')\ndist.barrier()").status
        == "error"
    )
    result = kernel.run("%%px\nmodel(torch.ones(2, 4)).sum().backward()")
    assert result.status == "error"
    assert re.search(r"`model`.* holds? the old group", result.evalue)
    check_usable(kernel, lost=[])


STUCK = """
def stuck():
    import torch.distributed as dist
    if dist.get_rank() != 0:
        dist.barrier()
"""


def test_fault_function_of_a_view_is_freed_by_the_next_cell(kernel):
    """
    Ranks that a call of a view has left stuck are released by the next cell or by regroup(),
    because no stall monitor watches ipyparallel's own views.
    """
    assert kernel.run(PREPARE).status == "ok"
    assert kernel.run(STUCK).status == "ok"
    kernel.run("result = ranks.view.apply_async(stuck)")
    freed = kernel.run("%%px\nprint('through')")
    assert freed.status == "ok", freed
    assert "Ranks were stuck in a call from before this cell, and were released." in freed.text
    assert freed.seconds < PROMPT_S
    check_usable(kernel, lost=[])
    kernel.run("result = ranks.view.apply_async(stuck)")
    assert kernel.run("ranks.regroup()").status == "ok"
    check_usable(kernel, lost=[])


def test_fault_view_of_a_dead_rank_raises(kernel):
    """
    A view that waits for a rank that dies raises at once, and a view of a dead rank returns at
    once.
    """
    assert kernel.run(PREPARE).status == "ok"
    assert kernel.run("import os, time").status == "ok"
    waiting = kernel.run(
        "result = ranks.view.apply_async(time.sleep, 1.5)\n"
        "os.kill(ranks.supervisor.pids[1], 9)\nresult.get()",
        stop_after_s=(20,),
    )
    assert waiting.status == "error", waiting
    assert waiting.seconds < 1.5 + PROMPT_S
    wait_until(
        lambda: kernel.value("ranks.client.ids") != list(range(kernel.world_size)),
        5.0,
        "news of the death",
    )
    assert kernel.run("ranks.view['rank']").seconds < PROMPT_S
    assert kernel.run("%%px\nprint(1)").ename == "RankDied"
    check_usable(kernel, lost=[1])


def test_fault_receive_in_a_subgroup_names_the_global_rank(kernel):
    """
    The message names a peer by its rank in the world, though the call gives its rank in a subgroup.
    """
    assert kernel.run(PREPARE).status == "ok"
    last = kernel.world_size - 1
    pair = kernel.run(f"%%px\npair = dist.new_group([{last - 1}, {last}])")
    assert pair.status == "ok", pair
    result = kernel.run(f"%%px\nif rank == {last - 1}:\n    dist.recv(t, group=pair, group_src=1)")
    assert result.evalue.startswith(
        f"Deadlock: rank {last} finished the cell without a send; "
        f"rank {last - 1} waits in recv (line 2)."
    ), result
    check_usable(kernel, lost=[])
