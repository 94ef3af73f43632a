"""
Tests of ranks that ipyparallel's own local launcher has started: faults are handled as for others.
"""

import pytest

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.errors import RankDied, RankRaised
from ddp_lessons.ranks.kernel.cells import run_cell

pytestmark = [pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def ranks():
    """
    Yield two ranks of ipyparallel's local launcher, which starts a process for each, like those for
    Slurm and MPI.
    """
    started = start_ranks(2, device="cpu", launcher="local", timeout_s=120)
    run_cell(started, "import os, signal, torch, torch.distributed as dist\nmine = dist.get_rank()")
    yield started
    stop_ranks()


def test_a_deadlock_is_ended(ranks):
    """
    A deadlock is ended: the `KernelNanny` process of each engine does not count as a child process
    that may still act for its rank.
    """
    with pytest.raises(RankRaised, match="Deadlock: rank 1 finished the cell"):
        run_cell(ranks, "if mine == 0: dist.all_reduce(torch.ones(1))")
    assert ranks.view["mine"] == [0, 1]


def test_a_dead_rank_is_replaced(ranks):
    """
    A dead rank is replaced by a new process of the same launcher, with the same number and in the
    group of all ranks.
    """
    with pytest.raises(RankDied, match="rank 1 died") as caught:
        run_cell(ranks, "if mine: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")
    assert "A new rank 1 is in place; its variables are gone." in str(caught.value)
    run_cell(ranks, "import torch, torch.distributed as dist\nones = torch.ones(1)")
    run_cell(ranks, "dist.all_reduce(ones)\nnum_there = int(ones.item())")
    assert ranks.view["num_there"] == [2, 2]
    assert ranks[0]["mine"] == 0


def test_all_are_on_this_machine(ranks):
    """
    Ranks on this machine have no host's name, and the table shows their processes and memory.
    """
    assert ranks.engines.hosts == {}
    rows = ranks.status().rows
    assert all(row.pid and row.memory_mib and not row.host for row in rows)
