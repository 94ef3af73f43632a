"""
Joining and leaving a group, against torch's own view of it.
"""

import multiprocessing

import pytest
import torch
import torch.distributed as dist

from ddp_lessons.process_group import join_group, leave_group, rank_device


def _member(store_file, rank, world_size, answers):
    join_group(store_file, rank, world_size)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    answers.put((rank, dist.get_rank(), dist.get_world_size(), dist.get_backend(), total.item()))
    leave_group()
    answers.put((rank, dist.is_initialized()))


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_join_group_makes_a_group_that_adds_up(tmp_path, monkeypatch, world_size):
    """
    The group has the size, the numbers and the backend that were asked for, and it works.
    """
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    store_file = str(tmp_path / "store")
    members = [
        context.Process(target=_member, args=(store_file, rank, world_size, answers))
        for rank in range(world_size)
    ]
    for member in members:
        member.start()
    told = [answers.get(timeout=60) for _ in range(2 * world_size)]
    for member in members:
        member.join(timeout=60)
        assert member.exitcode == 0
    total = float(sum(range(1, world_size + 1)))
    assert sorted(t for t in told if len(t) == 5) == [
        (rank, rank, world_size, "gloo", total) for rank in range(world_size)
    ]
    assert sorted(t for t in told if len(t) == 2) == [(rank, False) for rank in range(world_size)]


def test_leave_group_outside_a_group_does_nothing():
    """
    A lesson's last cell may run twice.
    """
    leave_group()
    assert not dist.is_initialized()


def test_rank_device_is_what_start_ranks_chose(monkeypatch):
    """
    The placement decides; without one, the CPU is used where there is no GPU.
    """
    monkeypatch.setenv("DDP_LESSONS_DEVICE", "cuda:3")
    assert rank_device() == torch.device("cuda:3")
    monkeypatch.delenv("DDP_LESSONS_DEVICE")
    if not torch.cuda.is_available():
        assert rank_device() == torch.device("cpu")


@pytest.mark.gpu
def test_rank_device_spreads_local_ranks_over_gpus(monkeypatch):
    """
    Under torchrun each local rank has a GPU of its own.
    """
    monkeypatch.delenv("DDP_LESSONS_DEVICE", raising=False)
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    assert rank_device() == torch.device("cuda:0")
