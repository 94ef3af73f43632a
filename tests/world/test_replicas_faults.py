"""
Faults that replicas refuse on every rank, and faults from which they recover.
"""

import pytest
import torch
from failed_work import FailedWork
from replica_models import batch, gradients, mlp, same
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.replicas import OverlappedReplica


def _faulty(rank, world_size, fault):
    model, options = mlp(), {}
    if fault == "frozen on one":
        model[0].weight.requires_grad_(rank == 0)
    elif fault == "nothing to train on one":
        model.requires_grad_(rank == 0)
    elif fault == "shape":
        model = nn.Linear(3, 4 + rank)
    elif fault == "sparse":
        model = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    elif fault == "cap":
        options = {"bucket_cap_bytes": 8 + rank}
    elif fault == "fewer":
        model = nn.Linear(3, 4, bias=rank == 0)
    elif fault == "transposed on one" and rank:
        model[0].weight.data = model[0].weight.data.t().contiguous().t()
    try:
        OverlappedReplica(model, **options)
    except BadInput as error:
        return str(error)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "frozen on one",
            "Replicas differ: 0.weight must be (16, 7) torch.float32 trained as on rank 0 "
            "(got (16, 7) torch.float32, rank 1 of 2). Build the same on every rank.",
        ),
        (
            "nothing to train on one",
            "Nothing to train: at least one parameter must require a gradient "
            "(got none). Use the module as it is.",
        ),
        (
            "shape",
            "Replicas differ: weight must be (4, 3) torch.float32 trained as on rank 0 "
            "(got (5, 3) torch.float32 trained, rank 1 of 2). Build the same on every rank.",
        ),
        (
            "sparse",
            "Sparse gradients: every gradient must be dense "
            "(got sparse=True in 0). Make it without sparse=True.",
        ),
        (
            "cap",
            "Replicas differ: bucket_cap_bytes must be 8 as on rank 0 "
            "(got 9, rank 1 of 2). Build the same on every rank.",
        ),
        (
            "fewer",
            "Replicas differ: bias must be (4,) torch.float32 trained as on rank 0 "
            "(got nothing, rank 1 of 2). Build the same on every rank.",
        ),
        (
            "transposed on one",
            "Replicas differ: 0.weight must be (16, 7) torch.float32 trained as on rank 0 "
            "(got (16, 7) torch.float32 trained, strides (1, 16), rank 1 of 2). "
            "Build the same on every rank.",
        ),
    ],
)
def test_replicas_refuse_on_every_rank(fault, message):
    """
    If one rank raised alone, the others would wait for it for half an hour.
    """
    assert run_world(2, _faulty, fault) == [message] * 2


def _after_a_fault(rank, world_size):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("no gradient today")

    ours = OverlappedReplica(mlp(), bucket_cap_bytes=1, first_bucket_cap_bytes=1)
    layers = list(ours.module)
    x = batch(rank)
    ours(x)  # a forward without a backward has no later effect
    ours(x)
    out = Fails.apply(layers[1](layers[0](x)))
    with pytest.raises(RuntimeError, match="no gradient today"):
        nn.Sequential(*layers[2:])(out).sum().backward()
    ours.zero_grad()
    ours(x).square().mean().backward()
    expected = DistributedDataParallel(mlp())
    expected(x).square().mean().backward()
    return same(gradients(ours), gradients(expected))


def test_overlapped_recovers_from_a_backward_that_raised():
    """
    In a notebook the next cell continues with the same model. Half a step before must not affect
    it.
    """
    assert run_world(2, _after_a_fault) == [True, True]


def _after_a_lost_group(rank, world_size):
    ours = OverlappedReplica(mlp())
    ours._works = [FailedWork(), None]
    ours(batch(rank)).square().mean().backward()
    expected = DistributedDataParallel(mlp())
    expected(batch(rank)).square().mean().backward()
    return same(gradients(ours), gradients(expected))


def test_overlapped_recovers_from_messages_that_ended_with_their_group():
    """
    The step that was interrupted has reported its lost messages. The next step ignores them.
    """
    assert run_world(2, _after_a_lost_group) == [True, True]
