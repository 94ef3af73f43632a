"""
All replicas start, train, accumulate and broadcast buffers as torch's DDP does.
"""

import functools

import pytest
import torch
import torch.distributed as dist
from replica_models import (
    CAP_BYTES,
    CAP_MIB,
    COPYING,
    KINDS,
    ON_GPUS_TOO,
    Odd,
    batch,
    gradients,
    mlp,
    one_float_a_rank,
    same,
    train_by_adam,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import WORLD_SIZES, run_world

from ddp_lessons.replicas import (
    BucketedReplica,
    FlatReplica,
    NaiveReplica,
    OverlappedReplica,
)


def _start(rank, world_size):
    expected = Odd(seed=0)
    answers = []
    for kind in KINDS:
        model = Odd(seed=rank)
        strides = [parameter.stride() for parameter in model.parameters()]
        kind(model)
        answers.append(
            same(list(model.state_dict().values()), list(expected.state_dict().values()))
            and strides == [parameter.stride() for parameter in model.parameters()]
        )
    return answers


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_replicas_start_from_rank_0_though_seeds_differ(world_size):
    """
    Averaged gradients keep replicas equal only if they start equal, frozen weights and buffers
    included.
    """
    assert run_world(world_size, _start) == [[True] * len(KINDS)] * world_size


def _like_ddp(rank, world_size):
    pairs = [  # one parameter, all parameters, 500 bytes a message: the same layout on both sides
        (NaiveReplica, 1 / 2**20),
        (FlatReplica, 1000),
        *(
            (functools.partial(kind, bucket_cap_bytes=CAP_BYTES, first_bucket_cap_bytes=CAP_BYTES),
             CAP_MIB)
            for kind in (BucketedReplica, OverlappedReplica, COPYING)
        ),
    ]  # fmt: skip
    answers = []
    for kind, cap_mib in pairs:
        ours = kind(mlp(seed=rank))
        theirs = DistributedDataParallel(mlp(seed=rank), bucket_cap_mb=cap_mib)
        theirs(batch(rank)).sum().backward()  # buckets get their layout after a first step
        theirs.zero_grad()
        equal = []
        for model in (ours, theirs):
            train_by_adam(model, rank)
            equal.append(gradients(model) + list(model.state_dict().values()))
        answers.append(same(*equal))
    return answers


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_replicas_train_bit_for_bit_as_ddp(world_size):
    """
    With equal seeds, buckets and order of additions, no rounding differs in three steps.
    """
    assert run_world(world_size, _like_ddp) == [[True] * 5] * world_size


def _odd_like_ddp(rank, world_size):
    x = batch(rank)[:, :5]
    alone = Odd(seed=0)
    alone(x).sum().backward()
    sizes = []
    for parameter in alone.parameters():
        size = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.abs()
        size = size.contiguous().double()
        if size.numel():
            dist.all_reduce(size)
        sizes.append(size / world_size)
    theirs = DistributedDataParallel(Odd(seed=rank))
    theirs(x).sum().backward()
    answers = []
    for kind in KINDS:
        ours = kind(Odd(seed=rank))
        ours(x).sum().backward()
        for mine, its, size in zip(gradients(ours), gradients(theirs), sizes, strict=True):
            if mine is None or its is None:
                answers.append(mine is None and its is None)
                continue
            # Two orders of adding w numbers differ: each rounds w - 1 times, by at most half a
            # unit.
            bound = (world_size - 1) * torch.finfo(mine.dtype).eps * size
            answers.append(bool(((mine.double() - its.double()).abs() <= bound).all()))
    return answers


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_replicas_average_odd_parameters_as_ddp(world_size):
    """
    One model has parameters that are tied, frozen, transposed, sliced, empty, scalar and half
    precision.
    """
    assert all(all(answers) for answers in run_world(world_size, _odd_like_ddp))


def _accumulate(model, rank):
    """
    Call forward and backward in every combination. The numbers are exact in float32.
    """
    x, y = torch.tensor([[4.0 * (rank + 1)]]), torch.tensor([[12.0 * (rank + 3)]])
    seen = {}

    def note(name):
        seen[name] = model.module.weight.grad.item()

    model.zero_grad()
    model(x).sum().backward()
    note("once")
    model(y).sum().backward()
    note("twice without zero_grad")
    model.zero_grad(set_to_none=False)
    model(x).sum().backward()
    note("after zeros")
    model.zero_grad()
    with model.no_sync():
        model(x).sum().backward()
        note("in no_sync")
        with model.no_sync():
            model(x).sum().backward()
        model(y).sum().backward()
    note("still local")
    model(y).sum().backward()
    note("window")
    model.zero_grad()
    with model.no_sync():
        out = model(x).sum()
    out.backward()
    note("forward inside, backward outside")
    model.zero_grad()
    out = model(x).sum()
    with model.no_sync():
        out.backward()
    note("forward outside, backward inside")
    model.zero_grad()
    out = model(x).sum()
    out.backward(retain_graph=True)
    out.backward()
    note("one forward, two backwards")
    model.zero_grad()
    first, second = model(x).sum(), model(y).sum()
    first.backward()
    second.backward()
    note("two forwards, two backwards")
    model.zero_grad()
    (model(x).sum() + model(y).sum()).backward()
    note("two forwards, one backward")
    with torch.no_grad():
        model(x)
    model.zero_grad()
    model(x).sum().backward()
    note("after evaluation")
    return seen


def _accumulates(rank, world_size):
    expected = _accumulate(DistributedDataParallel(one_float_a_rank()), rank)
    return expected, [_accumulate(kind(one_float_a_rank()), rank) for kind in KINDS]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_replicas_accumulate_as_ddp(world_size):
    """
    A learner who replaces DDP by a replica gets the same gradients, in windows, too.

        A forward is averaged in one backward, and only if it was outside `no_sync`.
    """
    for expected, ours in run_world(world_size, _accumulates):
        assert ours == [expected] * len(KINDS)
    assert expected["window"] != expected["still local"] or world_size == 1


def _batch_norm(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


def _buffers_follow(model, rank):
    seen = []
    for step in range(2):
        model.zero_grad()
        model(batch(rank, step)).sum().backward()
        seen += [buffer.clone() for buffer in model.module.buffers()]
        with model.no_sync():
            model(batch(rank, step + 5)).sum().backward()
            model(batch(rank, step + 7)).sum().backward()
        seen += [buffer.clone() for buffer in model.module.buffers()]
    model.eval()
    with torch.no_grad():
        seen.append(model(batch(0)))
        seen.append(model(batch(0)))
    return seen


def _buffers_like_ddp(rank, world_size):
    answers = []
    for broadcast in (True, False):
        theirs = DistributedDataParallel(_batch_norm(rank), broadcast_buffers=broadcast)
        expected = _buffers_follow(theirs, rank)
        for kind in KINDS:
            ours = kind(_batch_norm(rank), broadcast_buffers=broadcast)
            answers.append(same(_buffers_follow(ours, rank)[:-2], expected[:-2]))
    return answers


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_replicas_broadcast_buffers_when_ddp_does(world_size):
    """
    Rank 0's statistics are broadcast before a synchronised forward, but not inside `no_sync`.
    """
    assert all(all(answers) for answers in run_world(world_size, _buffers_like_ddp))


def _on_gpu(rank, world_size):
    answers = []
    for kind in ON_GPUS_TOO:
        ours, alone = kind(mlp().to("cuda:0")), mlp().to("cuda:0")
        for model in (ours, alone):
            model(batch(rank).to("cuda:0")).square().mean().backward()
        answers.append(same(gradients(ours), gradients(alone)))
    return answers


@pytest.mark.gpu
def test_replicas_work_on_a_gpu():
    """
    One rank on Gloo: the hooks run on the GPU's own autograd thread.
    """
    assert run_world(1, _on_gpu) == [[True] * len(ON_GPUS_TOO)]
