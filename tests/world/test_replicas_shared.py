"""
The replica with shared memory on one machine: its memory, the order of writes, and its refusals.
"""

import functools
import gc
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from replica_models import CAP_BYTES, CAP_MIB, batch, gradients, mlp, same, train_by_adam
from torch.nn.parallel import DistributedDataParallel
from worlds import WORLD_SIZES, run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.replicas import SharedMemoryReplica, num_different
from ddp_lessons.replicas.memory import _open, share_memory
from ddp_lessons.replicas.shared import _device_fault

SMALL = functools.partial(
    SharedMemoryReplica, bucket_cap_bytes=CAP_BYTES, first_bucket_cap_bytes=CAP_BYTES
)


def _train(rank, world_size):
    ours = SMALL(mlp(seed=rank))
    theirs = DistributedDataParallel(mlp(seed=rank), bucket_cap_mb=CAP_MIB)
    for model in (ours, theirs):
        train_by_adam(model, rank)
    flat = torch.cat([parameter.flatten() for parameter in ours.parameters()])
    is_like_ddp = same(gradients(ours), gradients(theirs))
    return num_different(flat), is_like_ddp or world_size > 2


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_shared_trains_to_the_same_bits_on_every_rank(world_size):
    """
    All ranks add in the order of ranks, so they have equal bits. The sum of two numbers does not
    depend on the order, so with two ranks the bits are also DDP's.
    """
    assert run_world(world_size, _train) == [(1, True)] * world_size


def _late_reader(rank, world_size):
    ours = SMALL(mlp())
    average = ours._average

    def late(number):
        if rank == 1:
            time.sleep(0.05)  # gives rank 0 time to go on to the next step
        average(number)

    ours._average = late
    alone = mlp()
    answers = []
    for step in range(3):
        for model, shards in ((ours, [rank]), (alone, range(world_size))):
            model.zero_grad()
            losses = [model(batch(shard, step)).sum() / len(shards) for shard in shards]
            torch.stack(losses).sum().backward()
        pairs = zip(gradients(ours), gradients(alone), strict=True)
        answers.append(all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in pairs))
    return answers


def test_a_rank_that_reads_late_reads_this_steps_gradients():
    """
    A fast rank that is one step ahead does not overwrite gradients that a slow one has not yet
    read.
    """
    assert run_world(2, _late_reader) == [[True] * 3] * 2


def _messages(rank, world_size):
    ours, events, all_reduce = SMALL(mlp()), [], dist.all_reduce
    for parameter in ours.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: events.append("ready"))

    def note(tensor, *args, **kwargs):
        events.append(tensor.numel())
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = note
    try:
        ours(batch(rank)).sum().backward()
    finally:
        dist.all_reduce = all_reduce
    return len(ours.buckets), events


def test_shared_sends_one_number_a_bucket_while_backward_goes_on():
    """
    The replica sends one number a bucket during backward, and one more when all ranks have read the
    memory.
    """
    for num_buckets, events in run_world(2, _messages):
        assert [event for event in events if event != "ready"] == [1] * (num_buckets + 1)
        assert events.index(1) < len(events) - 1 - events[::-1].index("ready")


def _held(rank, world_size):
    def seen():
        maps = Path("/proc/self/maps").read_text().count("ddp-lessons-gradients")
        return maps, len(os.listdir("/proc/self/fd"))

    SharedMemoryReplica(mlp())  # torch opens some files the first time
    gc.collect()
    before = seen()
    ours = SharedMemoryReplica(mlp())
    ours(batch(rank)).sum().backward()
    during = seen()
    ours.zero_grad()
    del ours
    gc.collect()
    return before, during, seen()


def test_shared_memory_is_gone_with_the_replica():
    """
    The memory has no name and no open file, so it is gone with the replica, also if a rank is
    killed.
    """
    for before, during, after in run_world(2, _held):
        assert before[0] == after[0] == 0
        assert during[0] == 2
        assert before[1] == during[1] == after[1]


def _out_of_reach(rank, world_size, fault):
    if rank == 1:
        if fault == "other system":
            del os.memfd_create
        elif fault == "other machine":
            os.getpid = lambda: 2**22 + 1  # above what Linux assigns
    try:
        share_memory(8, group=None)
    except BadInput as error:
        return str(error)


@pytest.mark.parametrize("fault", ["other system", "other machine"])
def test_ranks_that_share_no_memory_are_told_so_on_every_rank(fault):
    """
    If ranks cannot share memory, all ranks raise. Otherwise those that can read would wait for the
    one that cannot.
    """
    message = (
        "No common memory: all ranks must be on one machine, which runs Linux (rank 0 of 2 cannot "
        "reach rank 1's). Use OverlappedReplica."
    )
    assert run_world(2, _out_of_reach, fault) == [message] * 2


def test_a_file_of_somebody_else_is_not_taken_for_a_piece():
    """
    A process on another machine may have this number, and a file of this number. The token shows
    that it is not the right file.
    """
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(b"somebody else's")
        assert _open((os.getpid(), file.fileno(), b"token"), 64) is None
        file.seek(0)
        assert file.read() == b"somebody else's"


def _write(rank, world_size):
    pieces = share_memory(5)
    assert all(piece.tolist() == [0] * 5 for piece in pieces)
    dist.barrier()
    pieces[rank].fill_(rank + 1)
    dist.barrier()
    return [piece.tolist() for piece in pieces]


def test_each_rank_sees_what_the_others_write():
    """
    Each rank has one piece of memory, in the order of ranks, and all ranks can read all pieces.
    """
    expected = [[rank + 1] * 5 for rank in range(3)]
    assert run_world(3, _write) == [expected] * 3


def test_gradients_on_a_device_are_refused():
    """
    Gradients on a GPU are not in this memory, so they are refused. A GPU's own transport shares
    memory anyway.
    """
    there = torch.empty(2, device="meta")
    assert _device_fault(SimpleNamespace(names=["bias"], trained=[torch.empty(2)])) is None
    assert _device_fault(SimpleNamespace(names=["bias"], trained=[there])) == (
        "Gradients on a device: every parameter must be on the CPU (got meta for bias). "
        "Use OverlappedReplica."
    )
