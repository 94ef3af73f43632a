"""
The four replicas against torch's DDP, one process in float64, and plausible wrong answers.
"""

import functools
import gc
import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.replicas import (
    BucketedReplica,
    FlatReplica,
    NaiveReplica,
    OverlappedReplica,
    Replica,
    broadcast_from_first,
    plan_buckets,
)

COPYING = functools.partial(OverlappedReplica, gradient_as_bucket_view=False)
KINDS = (NaiveReplica, FlatReplica, BucketedReplica, OverlappedReplica, COPYING)
WORLD_SIZES = [1, 2, 3, 4]
CAP_BYTES = 500
CAP_MIB = CAP_BYTES / 2**20


def mlp(seed=0, dtype=torch.float32):
    """
    Make a small network whose gradients become ready in the reverse order of its parameters.
    """
    torch.manual_seed(seed)
    layers = [nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 31), nn.Tanh(), nn.Linear(31, 3)]
    return nn.Sequential(*layers).to(dtype)


class Odd(nn.Module):
    """
    All that trips replicas: tied, frozen, transposed, sliced, empty and half-precision parameters.
    """

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(5, 5, bias=False)
        self.tied = nn.Linear(5, 5)
        self.tied.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.transposed = nn.Parameter(torch.randn(5, 4).T)
        self.sliced = nn.Parameter(torch.randn(4, 6)[:, ::2])
        self.empty = nn.Parameter(torch.randn(0, 3))
        self.scalar = nn.Parameter(torch.randn(()))
        self.bf16 = nn.Parameter(torch.randn(3).bfloat16())
        self.register_buffer("steps", torch.tensor(seed))

    def forward(self, x):
        x = torch.tanh(self.tied(self.first(x) * self.frozen))
        x = x @ self.transposed.T @ self.sliced * self.scalar
        return x * self.bf16 + self.empty.sum()


class Branches(nn.Module):
    """
    Three layers that are used in any order, or not at all. Small integers, so that sums are exact.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))
        for part in self.parts:
            part.weight.data.random_(1, 5)

    def forward(self, x, order):
        for index in order:
            x = self.parts[index](x)
        return x.sum()


def gradients(module):
    """
    Return copies of all gradients, None where there is none.
    """
    grads = [parameter.grad for parameter in module.parameters()]
    return [None if grad is None else grad.clone() for grad in grads]


def same(left, right):
    """
    Say whether two lists of tensors and Nones are equal bit for bit.
    """
    return len(left) == len(right) and all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(left, right, strict=True)
    )


def batch(rank, step=0, num_samples=4, dtype=torch.float32):
    """
    Return the shard of a rank: other numbers on every rank and step.
    """
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(num_samples, 7, generator=generator, dtype=torch.float64).to(dtype)


# Plans


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([16, 32, 64])), min_size=1),
    cap_bytes=st.integers(1, 200),
    first_cap_bytes=st.integers(1, 200),
)
@settings(max_examples=100, deadline=None)
def test_plan_buckets_plans_as_torch_does(sizes, cap_bytes, first_cap_bytes):
    """
    Equal buckets are what makes sums equal bit for bit, so the rule must be torch's own.
    """
    dtypes = {16: torch.bfloat16, 32: torch.float32, 64: torch.float64}
    tensors = [torch.empty(size, dtype=dtypes[bits]) for size, bits in sizes]
    expected, _ = dist._compute_bucket_assignment_by_size(tensors, [first_cap_bytes, cap_bytes])
    assert plan_buckets(tensors, cap_bytes, first_cap_bytes) == [tuple(b) for b in expected]


def test_plan_buckets_holds_each_tensor_once():
    """
    Four of 8 bytes, full at 16: the bucket closes when it is reached, not when it is passed.
    """
    tensors = [torch.empty(2) for _ in range(5)]
    assert plan_buckets(tensors, cap_bytes=16) == [(0, 1), (2, 3), (4,)]
    assert plan_buckets(tensors, cap_bytes=16, first_cap_bytes=1) == [(0,), (1, 2), (3, 4)]
    assert plan_buckets([]) == []


@pytest.mark.parametrize("caps", [(0, None), (-1, None), (8, 0)])
def test_plan_buckets_refuses_a_cap_that_no_bucket_meets(caps):
    """
    A cap of 0 would be read as no cap or as one tensor a bucket: neither was asked for.
    """
    with pytest.raises(BadInput, match=r"^Bad bucket cap: .* more than 0 bytes \(got -?\d+\)\. "):
        plan_buckets([torch.empty(1)], *caps)


# Starting equal


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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_replicas_start_from_rank_0_though_seeds_differ(world_size):
    """
    Averaged gradients keep replicas equal only if they start equal: frozen weights and buffers too.
    """
    assert run_world(world_size, _start) == [[True] * len(KINDS)] * world_size


# Equal to DDP


def _like_ddp(rank, world_size):
    pairs = [  # one parameter, all parameters, a kilobyte a message: the same layout on both sides
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
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for step in range(3):
                optimizer.zero_grad()
                model(batch(rank, step)).square().mean().backward()
                optimizer.step()
            equal.append(gradients(model) + list(model.state_dict().values()))
        answers.append(same(*equal))
    return answers


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_replicas_train_bit_for_bit_as_ddp(world_size):
    """
    Same seeds, same buckets, same order of additions: no rounding may differ in three steps.
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
            # Two orders of adding up w numbers: each rounds w - 1 times, by half a unit at most.
            bound = (world_size - 1) * torch.finfo(mine.dtype).eps * size
            answers.append(bool(((mine.double() - its.double()).abs() <= bound).all()))
    return answers


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_replicas_average_odd_parameters_as_ddp(world_size):
    """
    Tied, frozen, transposed, sliced, empty, scalar and half-precision parameters in one model.
    """
    assert all(all(answers) for answers in run_world(world_size, _odd_like_ddp))


def _one_float_a_rank():
    torch.manual_seed(0)
    return nn.Linear(1, 1, bias=False)


def _accumulate(model, rank):
    """
    Go through every way of calling forward and backward; the numbers are exact in float32.
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
    expected = _accumulate(DistributedDataParallel(_one_float_a_rank()), rank)
    return expected, [_accumulate(kind(_one_float_a_rank()), rank) for kind in KINDS]


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_replicas_accumulate_as_ddp(world_size):
    """
    A learner who swaps one for the other must get the same gradients, in windows too.

    A forward is averaged in one backward, and only if it was outside no_sync.
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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_replicas_broadcast_buffers_when_ddp_does(world_size):
    """
    Rank 0's statistics go out before a synchronised forward, none inside no_sync.
    """
    assert all(all(answers) for answers in run_world(world_size, _buffers_like_ddp))


# Equal to one process


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
    # Roundings on the longest path: forward and backward through sums of 7, 16, 31 and 3 terms,
    # the batch, the ranks, and some ten elementwise steps; each relative to what is added up.
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


@pytest.mark.ranks
@pytest.mark.parametrize(
    "num_samples", [(5,), (4, 4), (7, 2), (3, 3, 3), (5, 0, 1), (2, 2, 2, 2), (1, 4, 2, 6)]
)
def test_replicas_equal_one_process_on_the_whole_batch(num_samples):
    """
    Weighted by samples, unequal shards give the whole batch's gradient to the last bits.

    The plain mean of means is right for equal shards alone; a shard without samples even makes it
    no number at all.
    """
    for errors, plain in run_world(len(num_samples), _unequal_shards, num_samples):
        assert max(errors) <= 1
        if len(set(num_samples)) == 1:
            assert plain <= 1
        else:
            assert not plain < 1e6


def _weights_hold_once(rank, world_size):
    ours = OverlappedReplica(_one_float_a_rank())
    x = torch.tensor([[4.0 * (rank + 1)]])
    seen = []
    for num_samples in (3 if rank == 0 else 1, None):
        ours.zero_grad()
        if num_samples:
            ours.weigh_by(num_samples)
        ours(x).sum().backward()
        seen.append(ours.module.weight.grad.item())
    return seen


@pytest.mark.ranks
def test_weigh_by_holds_for_one_backward():
    """
    A weight that stayed would be wrong as soon as the shards are equal again.
    """
    assert run_world(2, _weights_hold_once) == [[4 * 0.75 + 8 * 0.25, 6.0]] * 2


# Unused parameters


def _orders(rank, world_size):
    """
    Ranks use layers in other orders; layer 0 is used by rank 0 alone, layer 2 never if 2 is out.
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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("find_unused", [True, False])
def test_replicas_with_unused_parameters_do_not_hang(world_size, find_unused):
    """
    What one rank leaves out counts as zero; what all leave out is None if asked for, else zero.

    DDP with find_unused_parameters is the reference.
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


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 3])
def test_find_unused_parameters_leaves_old_gradients_alone(world_size):
    """
    What no rank used keeps its gradient bit for bit: a third of it, three times, would not be it.
    """
    assert run_world(world_size, _left_alone) == [[(True, False)] * 6] * world_size


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


@pytest.mark.ranks
def test_overlapped_sends_buckets_in_one_order_on_all_ranks():
    """
    Messages match by order: sent as they become ready, one rank's bucket 0 would meet bucket 2.
    """
    assert run_world(2, _ready_in_other_orders) == [(3, True)] * 2


def _no_backward(rank, world_size):
    seen = []
    for kind in KINDS:
        ours = kind(_one_float_a_rank())
        loss = ours(torch.tensor([[6.0]])).sum()
        if rank == 0:
            loss.backward()
        ours.wait_for_gradients()
        ours.wait_for_gradients()  # a second call finds nothing to do
        seen.append(ours.module.weight.grad.item())
    return seen


@pytest.mark.ranks
def test_wait_for_gradients_stands_in_for_a_backward():
    """
    A rank without a loss in a step must still take part, or the others wait for ever.
    """
    assert run_world(2, _no_backward) == [[3.0] * len(KINDS)] * 2


class Checkpointed(nn.Module):
    """
    Runs its layers under activation checkpoints, so that backward runs backwards within it.
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


@pytest.mark.ranks
def test_replicas_wait_for_the_outer_backward():
    """
    A reentrant checkpoint runs a backward of its own; at its end most gradients are missing.

    Two ranks, so that the layout of messages cannot change a sum.
    """
    for rank, (answers, refused) in enumerate(run_world(2, _checkpoints)):
        assert answers == [True] * 10
        assert refused == (
            "Gradient ready twice: backward must reach a parameter once "
            f"(got layers.0.bias, rank {rank} of 2). Use checkpoint(..., use_reentrant=False)."
        )


class Aside(nn.Module):
    """
    Keeps its loss to itself: backward does not start from what forward returns, a parameter.
    """

    def __init__(self):
        super().__init__()
        self.layer = _one_float_a_rank()

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


@pytest.mark.ranks
def test_replicas_follow_a_loss_that_forward_does_not_return():
    """
    The first gradient then tells that backward has begun.
    """
    assert run_world(2, _loss_aside) == [[6.0] * len(KINDS)] * 2


# What is sent, and when


class _Watch:
    """
    Note every all-reduce, and every gradient that becomes ready, in order.
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
        # The watch comes first: a message sent from the last gradient's own hook hides nothing.
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


@pytest.mark.ranks
def test_replicas_differ_in_number_and_time_of_their_messages():
    """
    All four send each gradient once; only their number, and whether backward hides it, differ.

    One message a parameter, and messages after backward, are wrong answers of later lessons.
    """
    num_parameters = sum(parameter.numel() for parameter in mlp().parameters())
    for seen, bucket_bytes in run_world(2, _messages):
        assert seen == [
            (0, 6, False, num_parameters),
            (0, 1, False, num_parameters),
            (0, 3, False, num_parameters),
            (0, 3, True, num_parameters),
        ]
        # From the last parameter on, floats of 4 bytes: a bucket closes once it has 500 bytes.
        assert bucket_bytes == [4 * (3 + 93 + 31), 4 * 496, 4 * (16 + 112)]


# A thin adapter, as published test suites for such a class want it


def _suite(rank, world_size):
    """
    Average by hand-called methods, plain SGD, against one process on all data.
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


@pytest.mark.ranks
def test_replicas_fit_a_suite_that_waits_by_hand():
    """
    Some suites call a method after backward and one at the start; both may be called anew.

    Weights are near 1 and some 200 roundings of 2e-16 apart; 1e-12 leaves room for three steps.
    """
    assert all(all(answers) for answers in run_world(2, _suite))


# Wrong answers


def _wrong_and_right(rank, world_size):
    x = [torch.tensor([[4.0 * (rank + 1) * (k + 1)]]) for k in range(4)]
    right = sum(4.0 * (r + 1) * (k + 1) for r in range(world_size) for k in range(4)) / world_size
    seen = {}

    model = _one_float_a_rank()

    def average_argument(tensor):
        dist.all_reduce(tensor.detach())
        tensor.detach().div_(world_size)

    model.weight.register_post_accumulate_grad_hook(average_argument)
    before = model.weight.detach().clone()
    for part in x:
        model(part).sum().backward()
    seen["hook averages its argument"] = model.weight.grad.item()
    seen["weights looked fine"] = torch.equal(model.weight, before)

    model = _one_float_a_rank()
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

    model = _one_float_a_rank()
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
        ours = kind(_one_float_a_rank())
        with ours.no_sync():
            for part in x[:-1]:
                ours(part).sum().backward()
        ours(x[-1]).sum().backward()
        assert ours.module.weight.grad.item() == right
    return seen, right


@pytest.mark.ranks
def test_wrong_averages_are_wrong_where_replicas_are_right():
    """
    C12 and pitfalls: a hook's argument is the parameter; a tensor's hook sees one micro-batch; SUM.
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
    model = _one_float_a_rank()
    model(torch.tensor([[4.0 * (rank + 1)]])).sum().backward()
    return model.weight.grad.item()


@pytest.mark.ranks
def test_backward_alone_averages_nothing():
    """
    C10: without a replica's hooks every rank keeps its own gradient.
    """
    assert run_world(2, _backward_alone) == [4.0, 8.0]


# Faults


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
    try:
        OverlappedReplica(model, **options)
    except BadInput as error:
        return str(error)


@pytest.mark.ranks
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
    ],
)
def test_replicas_refuse_on_every_rank(fault, message):
    """
    If one rank raised alone, the others would wait for it for half an hour.
    """
    assert run_world(2, _faulty, fault) == [message] * 2


def _bad_weights(rank, world_size, counts):
    ours = FlatReplica(_one_float_a_rank())
    try:
        ours.weigh_by(counts[rank])
    except BadInput as error:
        return str(error)


@pytest.mark.ranks
@pytest.mark.parametrize(("counts", "got"), [((0, 0), "0, rank 0"), ((3, -1), "-1, rank 1")])
def test_weigh_by_refuses_what_is_no_weight(counts, got):
    """
    No sample at all would divide by zero.
    """
    message = (
        "Bad weights: every rank must give 0 samples or more, and one of them at least 1 "
        f"(got {got} of 2). Count the shard's samples."
    )
    assert run_world(2, _bad_weights, counts) == [message] * 2


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
    ours(x)  # a forward without a backward leaves nothing behind
    ours(x)
    out = Fails.apply(layers[1](layers[0](x)))
    with pytest.raises(RuntimeError, match="no gradient today"):
        nn.Sequential(*layers[2:])(out).sum().backward()
    ours.zero_grad()
    ours(x).square().mean().backward()
    expected = DistributedDataParallel(mlp())
    expected(x).square().mean().backward()
    return same(gradients(ours), gradients(expected))


@pytest.mark.ranks
def test_overlapped_recovers_from_a_backward_that_raised():
    """
    In a notebook the next cell goes on with the same model; half a step must not leak into it.
    """
    assert run_world(2, _after_a_fault) == [True, True]


def _wrapped_anew(rank, world_size):
    model = mlp()
    for kind in KINDS:
        ours = kind(model)
    gc.collect()
    with _Watch(model) as watch:
        ours(batch(rank)).sum().backward()
    return watch.num_messages


@pytest.mark.ranks
def test_replica_that_is_gone_sends_nothing():
    """
    A notebook wraps one model in all four: hooks of the earlier ones must be silent.
    """
    assert run_world(2, _wrapped_anew) == [1, 1]


def _gradient_views(rank, world_size):
    answers = []
    for kind, is_view in ((OverlappedReplica, True), (COPYING, False)):
        ours = kind(mlp())
        ours(batch(rank)).sum().backward()
        kept = next(ours.parameters()).grad
        value = kept.clone()
        ours.zero_grad()
        ours(batch(rank, step=1)).sum().backward()
        answers.append(torch.equal(kept, value) is not is_view)
        largest = next(ours.parameters()).grad
        answers.append((largest.untyped_storage().nbytes() > largest.nbytes) is is_view)
    return answers


@pytest.mark.ranks
def test_gradient_as_bucket_view_saves_a_copy_and_says_its_price():
    """
    A view is overwritten by the next step; a copy is not.
    """
    assert run_world(2, _gradient_views) == [[True] * 4] * 2


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


@pytest.mark.ranks
def test_replicas_work_in_a_subgroup():
    """
    Rank 0 of the group is not rank 0 of the world.
    """
    assert run_world(3, _subgroup) == [None, (1, 1.0, True), (1, 1.0, True)]


def _unfinished(rank, world_size):
    ours = Replica(_one_float_a_rank())
    ours(torch.ones(1, 1))
    with pytest.raises(NotImplementedError):
        ours.wait_for_gradients()


@pytest.mark.ranks
def test_replica_leaves_sending_to_its_kinds():
    """
    The base class does not guess how gradients are to be sent.
    """
    run_world(1, _unfinished)


def _on_gpu(rank, world_size):
    answers = []
    for kind in KINDS:
        ours, alone = kind(mlp().to("cuda:0")), mlp().to("cuda:0")
        for model in (ours, alone):
            model(batch(rank).to("cuda:0")).square().mean().backward()
        answers.append(same(gradients(ours), gradients(alone)))
    return answers


@pytest.mark.gpu
@pytest.mark.ranks
def test_replicas_work_on_a_gpu():
    """
    One rank on Gloo: the hooks run on the GPU's own autograd thread.
    """
    assert run_world(1, _on_gpu) == [[True] * len(KINDS)]
