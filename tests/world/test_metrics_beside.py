"""
A process that is forked from a rank: it has an old copy and no group, and it always ends (claim
C23).
"""

import multiprocessing
import os
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from waiting import HANGS_AFTER_S
from worlds import run_world

from ddp_lessons.metrics import ForkedProcess


def _may_have_children():
    # Ranks of a notebook may have children. Those of `worlds` are daemons, which multiprocessing
    # does not allow to.
    multiprocessing.current_process()._config["daemon"] = False


def _train_and_ask(rank, world_size):
    _may_have_children()
    num_steps, weight = [0], torch.zeros(1)
    dist.all_reduce(torch.ones(1))  # ranks are connected now

    def answer(question):
        if question == "steps":
            return num_steps[0], weight.item(), os.getpid()
        if question == "raise":
            raise ValueError("no such thing")
        count = torch.ones(1)
        dist.all_reduce(count)
        return count.item()

    with ForkedProcess(answer) as child:
        for _ in range(20):
            num_steps[0] += 1
            weight += 1
        seen = child.ask("steps", HANGS_AFTER_S)
        error = child.ask("raise", HANGS_AFTER_S)
        total = child.ask("sum", 1.0)
    count = torch.ones(1)
    dist.all_reduce(count)
    return seen, error, total, num_steps[0], count.item()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_forked_process_has_old_weights_and_no_group(world_size):
    """
    The child's weights are old and its collective never ends. The parent's collectives work before
    and after.
    """
    for seen, error, total, num_steps, count in run_world(world_size, _train_and_ask):
        assert seen[:2] == (0, 0.0)
        assert not psutil.pid_exists(seen[2])
        assert error == "ValueError: no such thing"
        # In a group of one there is no other rank to wait for, but Gloo's threads, which a fork
        # does not copy, do the work.
        assert total is None
        assert (num_steps, count) == (20, world_size)


def _leave_it(rank, world_size):
    _may_have_children()
    child = ForkedProcess(lambda question: time.sleep(600), most_s=1)
    child.ask("sleep", 0)
    child._process.join(HANGS_AFTER_S)
    return child._process.exitcode


def test_forked_process_ends_by_itself():
    """
    A forked process ends by itself, because no process would end it after its rank was killed.
    """
    assert run_world(1, _leave_it) == [-14]  # SIGALRM
