"""
Joining and leaving a group, against torch's own view of it.
"""

import pytest
import torch
import torch.distributed as dist
from worlds import run_world

from ddp_lessons.process_group import join_group, leave_group, rank_device


def _join_add_leave(rank, world_size, store_file):
    join_group(store_file, rank, world_size)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    seen = (dist.get_rank(), dist.get_world_size(), dist.get_backend(), total.item())
    leave_group()
    return (*seen, dist.is_initialized())


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_join_group_makes_a_group_that_adds_up(tmp_path, world_size):
    """
    The group has the size, the numbers and the backend that were asked for, works, and ends.
    """
    seen = run_world(world_size, _join_add_leave, str(tmp_path / "store"), join=False)
    total = float(sum(range(1, world_size + 1)))
    assert seen == [(rank, world_size, "gloo", total, False) for rank in range(world_size)]


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
