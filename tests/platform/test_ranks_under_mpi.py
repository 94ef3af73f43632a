"""
Tests of ranks under mpiexec: faults are handled as for other ranks, but one death ends all ranks.
"""

import os
import shutil
import signal
import threading

import pytest
from kernels import running_kernel
from launched import assert_in_order, blocks, configure, failing, prepare
from processes import new_mark, wait_until_gone

from ddp_lessons import ranks as sets_of_ranks
from ddp_lessons import stop_ranks
from ddp_lessons.errors import CellStopped, RankDied, RankRaised, RanksGone, StartFailed

START, SETTINGS, GO_ON = blocks("mpi.md", "python")
START_S = 120.0
GONE_S = 30.0

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("mpiexec") is None, reason="no mpiexec on this machine"),
]


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory):
    """
    Set the settings of docs/mpi.md.
    """
    with pytest.MonkeyPatch.context() as patch:
        configure(patch, tmp_path_factory.mktemp("home"), SETTINGS)
        yield
        stop_ranks()


@pytest.fixture
def ranks():
    """
    Return four ranks: the running ones, or new ones if an earlier test has ended them.
    """
    names = {"start_ranks": start_ranks}
    exec(START, names)
    prepare(names["ranks"])
    return names["ranks"]


def start_ranks(n, **asked):
    """
    Start ranks, with a time limit for a busy machine.
    """
    return sets_of_ranks.start_ranks(n, timeout_s=START_S, **asked)


def test_a_rank_that_raises_is_named_and_the_others_are_freed(ranks):
    """
    A rank that raises is named, and the others are released. No host is named, because all ranks
    are on this machine.
    """
    assert ranks.engines.hosts == {}
    source = "if mine == 2: raise ValueError('two')\ndist.all_reduce(one)"
    said = failing(ranks, source, RankRaised, "rank 2 raised ValueError: two")
    assert "ranks 0, 1 and 3 were released" in said
    assert_in_order(ranks, range(4))


def test_a_deadlock_is_ended(ranks):
    """
    A deadlock is ended, which mpiexec cannot find: all its processes run.
    """
    failing(ranks, "if mine != 1: dist.all_reduce(one)", RankRaised, "Deadlock: rank 1 finished")
    assert_in_order(ranks, range(4))


def test_stop_frees_all_ranks(ranks):
    """
    Stop ends the cell and keeps the ranks: the signal must not reach mpiexec, which would end them.
    """
    stop = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    stop.start()
    source = "time.sleep(60 if mine else 0)\ndist.all_reduce(one)"
    failing(ranks, source, CellStopped, "rank 0 waits for them in all_reduce")
    stop.join()
    assert_in_order(ranks, range(4))


def test_one_that_dies_takes_all_along_and_is_named(ranks):
    """
    A rank that is killed ends all ranks, as mpiexec does it, and the message names it and its
    signal.
    """
    source = "if mine == 2: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(one)"
    said = failing(ranks, source, RanksGone, "mpiexec ends all when one dies")
    assert "rank 2 ended by signal 9 (Killed). Run start_ranks() again" in said
    assert not ranks.alive


def test_one_that_exits_is_named_with_its_code(ranks):
    """
    New ranks after such an end work, and the message for a rank that exits names its exit code.
    """
    assert_in_order(ranks, range(4))
    source = "if mine == 1: os._exit(3)\ndist.all_reduce(one)"
    said = failing(ranks, source, RanksGone, "mpiexec ends all when one dies")
    assert "rank 1 exited with code 3" in said


def test_open_mpi_that_is_told_to_go_on_loses_one_only(tmp_path, monkeypatch):
    """
    With Open MPI's option to continue after a death, a dead rank is replaced, as with other
    launchers.
    """
    stop_ranks()
    configure(monkeypatch, tmp_path, f"{SETTINGS}\n{GO_ON}")
    ranks = start_ranks(3, launcher="mpi")
    prepare(ranks)
    source = "if mine == 2: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(one)"
    said = failing(ranks, source, RankDied, "rank 2 died")
    assert "A new rank 2 is in place" in said
    assert_in_order(ranks, range(2))
    stop_ranks()


def test_nothing_outlives_a_kernel_that_is_killed():
    """
    If the kernel is killed during a cell, the ranks end, because their controller is silent.
    """
    stop_ranks()
    mark = new_mark()
    with running_kernel(**mark) as kernel:
        kernel.run("from ddp_lessons import start_ranks")
        assert kernel.run(START, timeout_s=START_S).status == "ok"
        kernel.client.execute("%%px\nimport time\ntime.sleep(600)")
        os.kill(kernel.pid, signal.SIGKILL)
        wait_until_gone(mark, GONE_S)


def test_nothing_is_left_of_ranks_that_are_stopped():
    """
    After stop() no process is left: neither ranks, nor mpiexec, nor the helper process of each
    rank.
    """
    stop_ranks()
    mark = new_mark()
    with running_kernel(**mark) as kernel:
        kernel.run("from ddp_lessons import start_ranks")
        assert kernel.run(START, timeout_s=START_S).status == "ok"
        assert kernel.run("ranks.stop()").status == "ok"
        wait_until_gone(mark, GONE_S, but=(kernel.pid,))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            "c.MPILauncher.mpi_args = ['--host', 'node1']",
            "failed with --host in c.MPILauncher.mpi_args: its ranks are on this machine",
        ),
        pytest.param(
            "c.MPILauncher.mpi_args = ['--nooversubscribe', '--allow-run-as-root']",
            'c.MPILauncher.mpi_args = ["--oversubscribe"]',
        ),
        pytest.param(
            "c.MPILauncher.mpi_args = []",
            'c.MPILauncher.mpi_args = ["--allow-run-as-root"]',
            marks=[
                pytest.mark.skipif(os.getuid() != 0, reason="only root is refused"),
            ],
        ),
    ],
    ids=["other-machines", "too-few-cores", "root"],
)
def test_what_cannot_start_says_so(tmp_path, monkeypatch, settings, said):
    """
    A start that mpiexec refuses fails with the setting to change, which mpiexec's own long message
    does not name.
    """
    stop_ranks()
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.delenv(name, raising=False)
    configure(monkeypatch, tmp_path, settings)
    with pytest.raises(StartFailed) as caught:
        sets_of_ranks.start_ranks(4 * os.cpu_count(), launcher="mpi", timeout_s=START_S)
    assert said in str(caught.value)
