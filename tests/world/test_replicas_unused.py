"""
Parameters that some ranks do not use, gradients in other orders, and backwards inside a backward.
"""

import pytest
import torch
import torch.distributed as dist
from replica_models import KINDS, Branches, batch, gradients, mlp, one_float_a_rank, same
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.replicas import OverlappedReplica


def _orders(rank, world_size):
    """
    Return this rank's order of layers: only rank 0 uses layer 0, and no rank uses layer 2.
    """
    return (0, 1) if rank == 0 else (1,)


def _uses_branches(rank, world_size, find_unused):
    x = torch.full((1, 2), float(rank + 1))
    theirs = DistributedDataParallel(Branches(), find_unused_parameters=True)
    expected = []
    for _ in range(2):
        theirs(x, _orders(rank, world_size)).backward()
        expected.append(gradients(theirs))
    seen = []
    for kind in KINDS:
        ours = kind(Branches(), find_unused_parameters=find_unused)
        for step in range(2):
            ours(x, _orders(rank, world_size)).backward()
            got = gradients(ours)
            seen.append((same(got[:2], expected[step][:2]), got[2] is None, expected[step][2]))
            if got[2] is not None:
                seen.append((not got[2].any(), False, None))
    return seen


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("find_unused", [True, False])
def test_replicas_with_unused_parameters_do_not_hang(world_size, find_unused):
    """
    A gradient that one rank lacks counts as zero. If all ranks lack it, it is None with
    `find_unused_parameters`, and zero without.

        DDP with `find_unused_parameters` is the reference.
    """
    for seen in run_world(world_size, _uses_branches, find_unused):
        assert seen
        for right, is_none, expected in seen:
            assert right
            assert is_none == find_unused
            assert expected is None


def _left_alone(rank, world_size):
    x = torch.full((1, 2), rank + 1 / 3)
    answers = []
    for kind in (*KINDS, DistributedDataParallel):
        ours = kind(Branches(), find_unused_parameters=True)
        ours(x, (0, 1, 2)).backward()
        before = gradients(ours)
        ours(x, (0,)).backward()
        after = gradients(ours)
        answers.append((same(before[1:], after[1:]), same(before[:1], after[:1])))
    return answers


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", [1, 3])
def test_find_unused_parameters_leaves_old_gradients_alone(world_size):
    """
    A parameter that no rank used keeps its gradient bit for bit. An average of three equal
    gradients might round to other bits.
    """
    assert run_world(world_size, _left_alone) == [[(True, False)] * (len(KINDS) + 1)] * world_size


def _ready_in_other_orders(rank, world_size):
    order = (0, 1, 2) if rank == 0 else (2, 1, 0)
    x = torch.full((1, 2), float(rank + 1))
    alone = Branches()
    alone(x, order).backward()
    expected = [parameter.grad / 2 for parameter in alone.parameters()]
    for grad in expected:
        dist.all_reduce(grad)
    ours = OverlappedReplica(Branches(), bucket_cap_bytes=1, first_bucket_cap_bytes=1)
    ours(x, order).backward()
    return len(ours.buckets), same(gradients(ours), expected)


def test_overlapped_sends_buckets_in_one_order_on_all_ranks():
    """
    Messages match by order. If buckets were sent as they become ready, bucket 0 of one rank would
    meet bucket 2 of another.
    """
    assert run_world(2, _ready_in_other_orders) == [(3, True)] * 2


def _no_backward(rank, world_size):
    seen = []
    for kind in KINDS:
        ours = kind(one_float_a_rank())
        loss = ours(torch.tensor([[6.0]])).sum()
        if rank == 0:
            loss.backward()
        ours.wait_for_gradients()
        ours.wait_for_gradients()  # a second call finds nothing to do
        seen.append(ours.module.weight.grad.item())
    return seen


def test_wait_for_gradients_stands_in_for_a_backward():
    """
    A rank without a loss in a step must still send, because the others would wait for ever.
    """
    assert run_world(2, _no_backward) == [[3.0] * len(KINDS)] * 2


class Checkpointed(nn.Module):
    """
    A model that runs its layers under activation checkpoints, so that backward runs inner
    backwards.
    """

    def __init__(self, layers, use_reentrant):
        super().__init__()
        self.layers = layers
        self.use_reentrant = use_reentrant

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.use_reentrant)
        return {"out": x}


def _checkpoints(rank, world_size):
    x = batch(rank).requires_grad_()
    expected = DistributedDataParallel(mlp())
    expected(x).square().mean().backward()
    answers = []
    for kind in KINDS:
        for use_reentrant in (True, False):
            ours = kind(Checkpointed(mlp(), use_reentrant))
            ours(x)["out"].square().mean().backward()
            answers.append(same(gradients(ours), gradients(expected)))
    twice = nn.Linear(7, 7)
    ours = OverlappedReplica(Checkpointed(nn.ModuleList([twice, twice]), use_reentrant=True))
    with pytest.raises(BadInput) as refused:
        ours(x)["out"].sum().backward()
    return answers, str(refused.value)


def test_replicas_wait_for_the_outer_backward():
    """
    A reentrant checkpoint runs an inner backward, at whose end most gradients are missing. The
    replica waits for the outer one.

        The test has two ranks, so that the layout of messages cannot change a sum.
    """
    for rank, (answers, refused) in enumerate(run_world(2, _checkpoints)):
        assert answers == [True] * 2 * len(KINDS)
        assert refused == (
            "Gradient ready twice: backward must reach a parameter once "
            f"(got layers.0.bias, rank {rank} of 2). Use checkpoint(..., use_reentrant=False)."
        )


class Aside(nn.Module):
    """
    A model that stores its loss: backward does not start from the value that forward returns, which
    is a parameter.
    """

    def __init__(self):
        super().__init__()
        self.layer = one_float_a_rank()

    def forward(self, x):
        self.loss = self.layer(x).sum()
        return self.layer.weight


def _loss_aside(rank, world_size):
    seen = []
    for kind in KINDS:
        ours = kind(Aside())
        ours(torch.tensor([[4.0 * (rank + 1)]]))
        ours.module.loss.backward()
        assert not ours.module.layer.weight._backward_hooks, "a hook more with every forward"
        seen.append(ours.module.layer.weight.grad.item())
    return seen


def test_replicas_follow_a_loss_that_forward_does_not_return():
    """
    If forward does not return the loss, the first gradient shows that backward has begun.
    """
    assert run_world(2, _loss_aside) == [[6.0] * len(KINDS)] * 2
