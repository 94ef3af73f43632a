"""
The messages of replicas and their times, in which the four kinds differ although their gradients
are equal.
"""

import gc
import math

import pytest
import torch
import torch.distributed as dist
from replica_models import CAP_BYTES, KINDS, Odd, batch, mlp, one_float_a_rank
from worlds import run_world

from ddp_lessons.replicas import (
    BucketedReplica,
    FlatReplica,
    NaiveReplica,
    OverlappedReplica,
    Replica,
    broadcast_from_first,
)


class _Watch:
    """
    A record of every all-reduce, and of every gradient that becomes ready, in order.
    """

    def __init__(self, module):
        self.events = []
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self.events.append("ready"))

    def __enter__(self):
        self._all_reduce = dist.all_reduce
        dist.all_reduce = self._note
        return self

    def __exit__(self, *_):
        dist.all_reduce = self._all_reduce

    def _note(self, tensor, *args, **kwargs):
        self.events.append(tensor.numel())
        return self._all_reduce(tensor, *args, **kwargs)

    @property
    def num_messages(self):
        return sum(event != "ready" for event in self.events)

    @property
    def overlaps(self):
        """
        Whether a message started before the last gradient was ready.
        """
        last = max(at for at, event in enumerate(self.events) if event == "ready")
        return any(event != "ready" for event in self.events[:last])


def _messages(rank, world_size):
    seen = []
    for kind in (NaiveReplica, FlatReplica, BucketedReplica, OverlappedReplica):
        model = mlp()
        caps = {"bucket_cap_bytes": CAP_BYTES, "first_bucket_cap_bytes": CAP_BYTES}
        # The watch's hooks run first, so that a message from the last gradient's own hook does not
        # count as overlapping.
        watch = _Watch(model)
        ours = kind(model, **({} if kind in (NaiveReplica, FlatReplica) else caps))
        with watch:
            with ours.no_sync():
                ours(batch(rank)).sum().backward()
            local = watch.num_messages
            ours(batch(rank)).sum().backward()
        sent = sum(event for event in watch.events if event != "ready")
        seen.append((local, watch.num_messages, watch.overlaps, sent))
    return seen, ours.bucket_bytes


def test_replicas_differ_in_number_and_time_of_their_messages():
    """
    All four kinds send each gradient once. They differ in the number of messages, and in whether
    backward hides them.

        One message for each parameter, and messages after backward, are wrong answers in later
        lessons.
    """
    num_parameters = sum(parameter.numel() for parameter in mlp().parameters())
    for seen, bucket_bytes in run_world(2, _messages):
        assert seen == [
            (0, 6, False, num_parameters),
            (0, 1, False, num_parameters),
            (0, 3, False, num_parameters),
            (0, 3, True, num_parameters),
        ]
        # From the last parameter on, floats have 4 bytes, and a bucket closes once it has 500
        # bytes.
        assert bucket_bytes == [4 * (3 + 93 + 31), 4 * 496, 4 * (16 + 112)]


def _suite(rank, world_size):
    """
    Train replicas with SGD by calling their methods, and compare with one process on all data.
    """
    answers = []
    for kind in KINDS:
        alone = mlp(seed=0, dtype=torch.float64)
        ours = kind(mlp(seed=rank, dtype=torch.float64))
        ours.broadcast_parameters()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (alone, ours)]
        for step in range(3):
            shards = [batch(r, step, dtype=torch.float64) for r in range(world_size)]
            for model, data, optimizer in zip(
                (alone, ours), (torch.cat(shards), shards[rank]), optimizers, strict=True
            ):
                optimizer.zero_grad()
                model(data).square().mean().backward()
                if model is ours:
                    ours.wait_for_gradients()
                optimizer.step()
            answers.append(
                all(
                    torch.allclose(a, b, rtol=1e-12, atol=1e-14)
                    for a, b in zip(alone.parameters(), ours.parameters(), strict=True)
                )
            )
    return answers


def test_replicas_fit_a_suite_that_waits_by_hand():
    """
    Some training suites call a method after backward and one at the start. Both may be called
    repeatedly.

        Weights are near 1 and have some 200 roundings of 2e-16; 1e-12 leaves room for three steps.
    """
    assert all(all(answers) for answers in run_world(2, _suite))


def _wrapped_anew(rank, world_size):
    model = mlp()
    for kind in KINDS:
        ours = kind(model)
    gc.collect()
    with _Watch(model) as watch:
        ours(batch(rank)).sum().backward()
    return watch.num_messages


def test_replica_that_is_gone_sends_nothing():
    """
    A notebook wraps one model in all four kinds. Hooks of replicas that are gone must send nothing.
    """
    assert run_world(2, _wrapped_anew) == [1, 1]


def _subgroup(rank, world_size):
    group = dist.new_group([1, 2])
    if rank == 0:
        return None
    ours = OverlappedReplica(Odd(seed=rank), group=group)
    ours.weigh_by(1)
    ours(batch(rank)[:, :5]).sum().backward()
    other = torch.empty_like(ours.module.scalar.grad)
    dist.broadcast(other, src=1, group=group)
    extra = torch.tensor([float(rank)])
    broadcast_from_first([extra, torch.empty(0, dtype=torch.int64)], group)
    return ours.module.steps.item(), extra.item(), math.isfinite(ours.module.scalar.grad.item())


def test_replicas_work_in_a_subgroup():
    """
    Rank 0 of a subgroup is not rank 0 of the world; replicas work there nevertheless.
    """
    assert run_world(3, _subgroup) == [None, (1, 1.0, True), (1, 1.0, True)]


def _unfinished(rank, world_size):
    ours = Replica(one_float_a_rank())
    ours(torch.ones(1, 1))
    with pytest.raises(NotImplementedError):
        ours.wait_for_gradients()


def test_replica_leaves_sending_to_its_kinds():
    """
    The base class does not define how gradients are sent.
    """
    run_world(1, _unfinished)
