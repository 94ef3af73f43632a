"""
Tests of starting ranks from a notebook: their number and numbering, their group, and their end.
"""

import os
import subprocess
import sys
import tempfile

import psutil
import pytest
from kernels import running_kernel
from processes import is_running, marked, new_mark, wait_until_gone
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.ranks.system.resource_limits import usable_cores

ALL_REDUCE = """%%px
import os
import torch
import torch.distributed as dist
t = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(t)
print(dist.get_rank(), dist.get_world_size(), os.environ["RANK"], os.environ["WORLD_SIZE"],
      t.tolist(), torch.get_num_threads())
"""
KILL_RANK_1 = "import os, signal; os.kill(ranks.supervisor.pids[1], signal.SIGKILL)"
LOST = "A new rank 1 is in place; its variables are gone.\nThe ranks have joined a new group."
IS_ENCRYPTED = """bool(__import__("json").load(open(
    ranks.cluster.controller.connection_files["engine"]))["curve_serverkey"])"""
PIDS = "[ranks[r].apply_sync(getpid) for r in range(len(ranks))]"


@pytest.fixture(scope="module")
def kernel():
    """
    Yield one kernel for all tests of this module. Each test starts the ranks that it needs.
    """
    mark = new_mark()
    with running_kernel(**mark) as kernel:
        kernel.mark = mark
        kernel.run("from os import getenv, getpid\nfrom ddp_lessons.ranks import start_ranks")
        yield kernel
    wait_until_gone(mark, HANGS_AFTER_S)


def ok(kernel, cell):
    """
    Run a cell that must not fail, and return what it printed.
    """
    result = kernel.run(cell)
    assert result.status == "ok", result
    return result.text


def ready_line(num_ranks):
    """
    Return the line that start_ranks(num_ranks, device="cpu") prints once its ranks are ready.
    """
    import torch

    cores = usable_cores()
    threads = max(1, cores // num_ranks)
    why = "device='cpu'" if torch.cuda.device_count() else "no GPU"
    return (
        f"{num_ranks} rank{'s' * (num_ranks != 1)} ready: cpu, gloo, "
        f"{threads} thread{'s' * (threads != 1)} each "
        f"({cores} core{'s' * (cores != 1)}, {why})"
    )


def all_reduce_lines(num_ranks):
    """
    Return the output of ALL_REDUCE: one line a rank in rank order, each with the sum of 1 to
    num_ranks.
    """
    total = num_ranks * (num_ranks + 1) / 2
    threads = max(1, usable_cores() // num_ranks)
    return "".join(
        f"[{r}] {r} {num_ranks} {r} {num_ranks} {[total] * 3} {threads}\n" for r in range(num_ranks)
    )


@pytest.mark.parametrize("cell", ["%%px\nprint(1)", "%px print(1)"])
def test_px_without_ranks_says_what_to_do(cell):
    """
    Without ranks `%%px` and `%px` tell the learner to run start_ranks(), both in a new kernel and
    after a refused start: IPython alone would say that the magic does not exist.
    """
    with running_kernel() as kernel:
        kernel.run("from ddp_lessons import predict")
        assert "Run start_ranks()." in kernel.run(cell).evalue
        refused = kernel.run("from ddp_lessons import start_ranks\nstart_ranks(100_000)")
        assert "Try start_ranks(" in refused.evalue
        said = kernel.run(cell)
    assert said.status == "error"
    assert "No ranks are running" in said.evalue
    assert "Run start_ranks()." in said.evalue


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_start_ranks_of_every_size(kernel, num_ranks):
    """
    ipyparallel's engine r is always rank r, on which every `--targets` and every picture of the
    course relies.
    """
    text = ok(kernel, f"ranks = start_ranks({num_ranks}, device='cpu')")
    assert text.splitlines()[-1] == ready_line(num_ranks)
    assert ok(kernel, ALL_REDUCE) == all_reduce_lines(num_ranks)
    ranks = kernel.value("[ranks[r].apply_sync(getenv, 'RANK') for r in range(len(ranks))]")
    assert ranks == [str(r) for r in range(num_ranks)]
    assert kernel.value("sorted(ranks.client.ids)") == list(range(num_ranks))
    assert kernel.value("ranks.supervisor.pids") == dict(enumerate(kernel.value(PIDS)))


@pytest.mark.parametrize("name", ["short", "a, b: ü@c=%d", "long" * 25])
def test_ranks_listen_on_no_port_where_the_runtime_folder_can_hold_sockets(name):
    """
    The controller uses sockets in the runtime folder, and listens on no port. If the folder's path
    is too long for sockets, it uses encrypted ports, without a message.
    """
    with (
        tempfile.TemporaryDirectory() as short,  # pytest's tmp_path may be too long for a socket
        running_kernel(DDP_LESSONS_RUNTIME_DIR=os.path.join(short, name)) as kernel,
    ):
        ok(kernel, "from ddp_lessons import start_ranks")
        assert ok(kernel, "ranks = start_ranks(2, device='cpu')") == f"{ready_line(2)}\n"
        assert ok(kernel, ALL_REDUCE) == all_reduce_lines(2)
        controller = psutil.Process(kernel.value("ranks.supervisor.controller_pid"))
        num_ports = len(controller.net_connections("inet"))
        ports = kernel.value("ranks.control.controller_ports")
        is_encrypted = kernel.value(IS_ENCRYPTED)
    assert bool(num_ports) == bool(ports) == is_encrypted == (len(name) == 100)


def test_start_ranks_twice_gives_the_running_ones(kernel):
    """
    A second start_ranks with the same arguments returns the running ranks: a learner who runs the
    first cell again must not lose variables.
    """
    ok(kernel, "ranks = start_ranks(2, device='cpu')\n%px x = 7")
    before = kernel.value(PIDS)
    assert ok(kernel, "again = start_ranks(2, device='cpu')") == ready_line(2) + "\n"
    assert kernel.value("again is ranks")
    assert kernel.value(PIDS) == before
    assert ok(kernel, "%px print(x)") == "[0] 7\n[1] 7\n"


def test_start_ranks_with_other_arguments_restarts_them(kernel):
    """
    start_ranks with other arguments ends the running ranks and starts new ones, and prints that
    their variables are lost.
    """
    ok(kernel, "ranks = start_ranks(2, device='cpu')")
    before = kernel.value(PIDS)
    assert ok(kernel, "old, ranks = ranks, start_ranks(3, device='cpu')").splitlines() == [
        "Other ranks were asked for: 2 ranks end, their variables with them.",
        ready_line(3),
    ]
    assert kernel.value("repr(old)") == "2 ranks, stopped"
    assert not any(is_running(pid) for pid in before)
    assert ok(kernel, ALL_REDUCE) == all_reduce_lines(3)


def test_start_ranks_again_after_a_death_makes_them_whole(kernel):
    """
    start_ranks after a death replaces the dead rank and regroups: without the regrouping the next
    cell would hang or fail.
    """
    ok(kernel, "ranks = start_ranks(2, device='cpu')")
    ok(kernel, KILL_RANK_1)
    wait_until(lambda: kernel.value("ranks.dead") == [1], HANGS_AFTER_S, "the death to be noticed")
    assert ok(kernel, "ranks = start_ranks(2, device='cpu')") == f"{LOST}\n{ready_line(2)}\n"
    assert ok(kernel, ALL_REDUCE) == all_reduce_lines(2)


def test_ranks_join_again_whatever_interface_a_cell_has_named(kernel):
    """
    Regrouping after a death uses the network interface of the start, though a cell has set another
    one, as lesson 17 does.
    """
    ok(kernel, "ranks = start_ranks(2, device='cpu')")
    ok(kernel, "%%px\nimport os\nos.environ['GLOO_SOCKET_IFNAME'] = 'cable0'")
    ok(kernel, KILL_RANK_1)
    wait_until(lambda: kernel.value("ranks.dead") == [1], HANGS_AFTER_S, "the death to be noticed")
    assert ok(kernel, "ranks = start_ranks(2, device='cpu')") == f"{LOST}\n{ready_line(2)}\n"
    assert ok(kernel, ALL_REDUCE) == all_reduce_lines(2)
    assert kernel.value("ranks[0].apply_sync(getenv, 'GLOO_SOCKET_IFNAME')") == "cable0"


def test_ranks_answer_after_a_join_that_failed(kernel):
    """
    After a regrouping that failed the ranks answer views, because no rank still waits for the
    group; once the cause is repaired, the next cell regroups them.
    """
    ok(kernel, "ranks = start_ranks(3, device='cpu')")
    told = "get_ipython().agent.group_variables['GLOO_SOCKET_IFNAME'] = 'cable0'"
    ok(kernel, f"%%px --targets 0\nkept = 7\n{told}")
    ok(kernel, KILL_RANK_1)
    wait_until(lambda: kernel.value("ranks.dead") == [1], HANGS_AFTER_S, "the death to be noticed")
    assert kernel.run("start_ranks(3, device='cpu')").ename == "StartFailed"
    assert kernel.value("ranks.view.apply_sync(int, '4')") == [4, 4, 4]
    assert kernel.value("ranks[0]['kept']") == 7
    mended = told.replace("cable0", "lo")
    ok(kernel, f"ranks[0].execute({mended!r}, block=True)")
    joined = "The ranks have joined a new group.\n"
    assert ok(kernel, ALL_REDUCE) == joined + all_reduce_lines(3)


@pytest.mark.parametrize(
    "call", ["0", "10**6", "2, device='tpu'", "2, launcher='docker'", "'2'", "-1, join=False"]
)
def test_start_ranks_with_bad_arguments_leaves_the_running_ones(kernel, call):
    """
    start_ranks with wrong arguments leaves the running ranks and their variables alone: a typing
    error must not cost an hour of training.
    """
    ok(kernel, "ranks = start_ranks(2, device='cpu')\n%px x = 7")
    result = kernel.run(f"start_ranks({call})")
    assert (result.status, result.ename, result.text) == ("error", "BadInput", "")
    assert ok(kernel, "%px print(x)") == "[0] 7\n[1] 7\n"


def test_start_ranks_in_a_with_statement(kernel):
    """
    The end of a `with` block ends its ranks, even if the block raises. A later cell reports that
    they are gone.
    """
    text = ok(
        kernel, "with start_ranks(2, device='cpu', join=False) as ranks:\n    print(len(ranks))"
    )
    assert text.splitlines()[-1] == "2"
    assert kernel.value("repr(ranks)") == "2 ranks, stopped"
    wait_until_gone(kernel.mark, HANGS_AFTER_S, but=(kernel.pid,))
    result = kernel.run("%px print(1)")
    assert result.ename == "RanksGone"
    assert result.evalue == (
        "The ranks are gone: stopped, or ended from outside. Run start_ranks() again."
    )
    failing = kernel.run("with start_ranks(1, device='cpu') as ranks:\n    1 / 0")
    assert failing.ename == "ZeroDivisionError"
    wait_until_gone(kernel.mark, HANGS_AFTER_S, but=(kernel.pid,))


def test_start_ranks_without_joining(kernel):
    """
    With join=False ranks start without a group, and a cell can make it by `init_process_group`, as
    lesson 01 does.
    """
    text = ok(kernel, "ranks = start_ranks(3, device='cpu', join=False)")
    assert text.splitlines()[-1] == ready_line(3) + ", not joined to a group"
    cell = "%%px\nimport torch.distributed as dist\nprint(dist.is_initialized())"
    assert ok(kernel, cell) == "[0] False\n[1] False\n[2] False\n"
    store = kernel.value("str(ranks.store_folder / 'mine')")
    ok(
        kernel,
        f"%px dist.init_process_group('gloo', init_method='file://{store}', "
        "rank=int(__import__('os').environ['RANK']), world_size=3)",
    )
    assert ok(kernel, ALL_REDUCE) == all_reduce_lines(3)


def test_start_ranks_with_fresh_interpreters(kernel):
    """
    Spawned ranks behave like forked ones, and a dead one is replaced. macOS uses them, because
    forking is not safe there.
    """
    text = ok(kernel, "ranks = start_ranks(2, device='cpu', launcher='spawn')")
    assert text.splitlines()[-1] == ready_line(2)
    assert ok(kernel, ALL_REDUCE) == all_reduce_lines(2)
    own = [
        p for p in marked(kernel.mark) if "ddp_lessons.ranks.supervisor.child_main" in p.cmdline()
    ]
    assert sorted(p.pid for p in own) == sorted(kernel.value(PIDS))
    died = kernel.run("%%px\nif dist.get_rank() == 1:\n    os._exit(3)\ndist.barrier()")
    assert died.ename == "RankDied"
    assert died.evalue.startswith("rank 1 died: its process exited with code 3")
    assert ok(kernel, ALL_REDUCE) == all_reduce_lines(2)


def test_start_ranks_by_ipyparallels_own_launcher(kernel):
    """
    Ranks that ipyparallel's own launcher starts have no supervisor, like those under Slurm: a fault
    is still explained, and stop() ends them.
    """
    text = ok(kernel, "ranks = start_ranks(2, device='cpu', launcher='local')")
    assert text.splitlines()[-1] == ready_line(2)
    assert ok(kernel, ALL_REDUCE) == all_reduce_lines(2)
    fault = kernel.run("%%px\nif dist.get_rank() == 1:\n    1 / 0\ndist.all_reduce(t)")
    assert fault.evalue.startswith("rank 1 raised ZeroDivisionError: division by zero at line 2: 1")
    assert ok(kernel, ALL_REDUCE) == all_reduce_lines(2)
    ok(kernel, "ranks.stop()")
    wait_until_gone(kernel.mark, HANGS_AFTER_S, but=(kernel.pid,))


SCRIPT = """
import os
from ddp_lessons.ranks import start_ranks

ranks = start_ranks(2, device="cpu")
print(ranks.view.apply_sync(os.getenv, "RANK"))
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)\n", "1 / 0\n"])
def test_start_ranks_in_a_script(end):
    """
    In a script, without IPython, views of ranks work, and the ranks end with the script, however it
    ends.
    """
    mark = new_mark()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + end],
        env={**os.environ, **mark},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{ready_line(2)}\n['0', '1']\n", done.stderr
    assert done.returncode == {"": 0, "1 / 0\n": 1}.get(end, 3)
    wait_until_gone(mark, HANGS_AFTER_S)


def test_ranks_share_no_session_of_the_system():
    """
    Each rank has its own system session: Linux distributes cores by session first, so ranks that
    share a session would wake each other late.
    """
    with running_kernel() as kernel:
        start = "from ddp_lessons.ranks import start_ranks\nranks = start_ranks(3, device='cpu')"
        assert kernel.run(start).status == "ok"
        told = "%px import os; print(os.getsid(0) == os.getpid())"
        assert kernel.run(told).text == "[0] True\n[1] True\n[2] True\n"
