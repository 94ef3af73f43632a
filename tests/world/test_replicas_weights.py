"""
Averages compared with one process in float64 on the whole batch, and wrong averages.
"""

import pytest
import torch
import torch.distributed as dist
from replica_models import KINDS, batch, mlp, one_float_a_rank
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.replicas import (
    FlatReplica,
    NaiveReplica,
    OverlappedReplica,
)


def _unequal_shards(rank, world_size, num_samples):
    data = [batch(r, num_samples=n, dtype=torch.float64) for r, n in enumerate(num_samples)]
    whole = torch.cat(data)
    alone = mlp(dtype=torch.float64)
    alone(whole).square().mean().backward()
    sizes = [torch.zeros_like(parameter) for parameter in alone.parameters()]
    for sample in whole:
        one = mlp(dtype=torch.float64)
        one(sample).square().mean().backward()
        for size, parameter in zip(sizes, one.parameters(), strict=True):
            size += parameter.grad.abs() / len(whole)
    # The roundings on the longest path are forward and backward through sums of 7, 16, 31 and 3
    # terms, the batch, the ranks, and some ten elementwise steps. Each is relative to the terms of
    # its sum.
    num_roundings = 2 * (7 + 16 + 31 + 3) + len(whole) + world_size + 10
    largest = max(size.max().item() for size in sizes)
    bound = num_roundings * torch.finfo(torch.float64).eps * largest
    errors = []
    for kind in KINDS:
        ours = kind(mlp(seed=rank, dtype=torch.float64))
        ours.weigh_by(len(data[rank]))
        ours(data[rank]).square().mean().backward()
        errors.append(_distance(ours, alone) / bound)
    plain = NaiveReplica(mlp(seed=rank, dtype=torch.float64))
    plain(data[rank]).square().mean().backward()
    return errors, _distance(plain, alone) / bound


def _distance(left, right):
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return max((a.grad - b.grad).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize(
    "num_samples", [(5,), (4, 4), (7, 2), (3, 3, 3), (5, 0, 1), (2, 2, 2, 2), (1, 4, 2, 6)]
)
def test_replicas_equal_one_process_on_the_whole_batch(num_samples):
    """
    Weighted by samples, unequal shards give the whole batch's gradient within rounding.

        The plain mean of means is right only for equal shards; a shard without samples makes it
        nan.
    """
    for errors, plain in run_world(len(num_samples), _unequal_shards, num_samples):
        assert max(errors) <= 1
        if len(set(num_samples)) == 1:
            assert plain <= 1
        else:
            assert not plain < 1e6


def _weights_hold_once(rank, world_size):
    ours = OverlappedReplica(one_float_a_rank())
    x = torch.tensor([[4.0 * (rank + 1)]])
    seen = []
    for num_samples in (3 if rank == 0 else 1, None):
        ours.zero_grad()
        if num_samples:
            ours.weigh_by(num_samples)
        ours(x).sum().backward()
        seen.append(ours.module.weight.grad.item())
    return seen


def test_weigh_by_holds_for_one_backward():
    """
    A weight holds for one backward: a weight that stayed would be wrong once the shards are equal
    again.
    """
    assert run_world(2, _weights_hold_once) == [[4 * 0.75 + 8 * 0.25, 6.0]] * 2


def _wrong_and_right(rank, world_size):
    x = [torch.tensor([[4.0 * (rank + 1) * (k + 1)]]) for k in range(4)]
    right = sum(4.0 * (r + 1) * (k + 1) for r in range(world_size) for k in range(4)) / world_size
    seen = {}

    model = one_float_a_rank()

    def average_argument(tensor):
        dist.all_reduce(tensor.detach())
        tensor.detach().div_(world_size)

    model.weight.register_post_accumulate_grad_hook(average_argument)
    before = model.weight.detach().clone()
    for part in x:
        model(part).sum().backward()
    seen["hook averages its argument"] = model.weight.grad.item()
    seen["weights looked fine"] = torch.equal(model.weight, before)

    model = one_float_a_rank()
    sent = []

    def average_incoming(grad):
        grad = grad / world_size
        dist.all_reduce(grad)
        sent.append(grad)

    model.weight.register_hook(average_incoming)
    for part in x:
        model(part).sum().backward()
    model.weight.grad = sent[-1]
    seen["tensor hook, last micro-batch"] = model.weight.grad.item()

    model = one_float_a_rank()
    for part in x:
        model(part).sum().backward()
    dist.all_reduce(model.weight.grad)
    seen["sum"] = model.weight.grad.item()
    seen["divided twice"] = model.weight.grad.item() / world_size**2
    try:
        dist.all_reduce([model.weight.grad])
    except (TypeError, ValueError, RuntimeError) as error:
        seen["list"] = type(error).__name__

    for kind in KINDS:
        ours = kind(one_float_a_rank())
        with ours.no_sync():
            for part in x[:-1]:
                ours(part).sum().backward()
        ours(x[-1]).sum().backward()
        assert ours.module.weight.grad.item() == right
    return seen, right


def test_wrong_averages_are_wrong_where_replicas_are_right():
    """
    Pitfalls are wrong where replicas are right (claim C12): a hook's argument is the parameter, a
    tensor's hook sees one micro-batch, and SUM is not divided.
    """
    seen = run_world(2, _wrong_and_right)
    for wrong, right in seen:
        assert right == 60.0
        assert wrong["hook averages its argument"] != right
        assert wrong["weights looked fine"], "equal seeds hide it"
        assert wrong["tensor hook, last micro-batch"] == 24.0
        assert wrong["sum"] == 2 * right, "SUM multiplies by the world size"
        assert wrong["divided twice"] == right / 2
        assert wrong["list"] == "TypeError"
    assert seen[0][0]["hook averages its argument"] != seen[1][0]["hook averages its argument"]


def _backward_alone(rank, world_size):
    model = one_float_a_rank()
    model(torch.tensor([[4.0 * (rank + 1)]])).sum().backward()
    return model.weight.grad.item()


def test_backward_alone_averages_nothing():
    """
    Without a replica's hooks every rank keeps its own gradient (claim C10).
    """
    assert run_world(2, _backward_alone) == [4.0, 8.0]


def _bad_weights(rank, world_size, counts):
    ours = FlatReplica(one_float_a_rank())
    try:
        ours.weigh_by(counts[rank])
    except BadInput as error:
        return str(error)


@pytest.mark.parametrize(("counts", "got"), [((0, 0), "0, rank 0"), ((3, -1), "-1, rank 1")])
def test_weigh_by_refuses_what_is_no_weight(counts, got):
    """
    If no rank has a sample, the weights would be divided by zero.
    """
    message = (
        "Bad weights: every rank must give 0 samples or more, and one of them at least 1 "
        f"(got {got} of 2). Count the shard's samples."
    )
    assert run_world(2, _bad_weights, counts) == [message] * 2
