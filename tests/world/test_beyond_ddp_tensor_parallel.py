"""
Sharded layers equal those of one process: their outputs, all gradients, and their cost.

The oracle is one process in float64. It adds in another order, so numbers may differ by rounding: n
terms of size s by at most n u s, where u is 1.1e-16. Here n and s are below 100. The limit of 1e-12
is a hundred times as much, and any mistake is a hundred million times larger.
"""

import pytest
import torch
import torch.distributed as dist
from metric_shards import packed, run_packed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from ddp_lessons.beyond_ddp.tensor_parallel import (
    ColumnParallelLinear,
    GatheringLinear,
    ParallelAttention,
    ParallelMLP,
    RowParallelLinear,
    held_numbers,
    pair_bytes,
    part_of,
    sent_by_ring,
)
from ddp_lessons.errors import BadInput
from ddp_lessons.trace import collectives, trace
from ddp_lessons.workloads import language_model
from ddp_lessons.workloads.seeds import seeded

WORLD_SIZES = [1, 2, 3, 4]
IN, HIDDEN, OUT, ROWS = 6, 24, 12, 7
LIMIT = 1e-12


def _pair(bias=True):
    with seeded(5):
        first, second = nn.Linear(IN, HIDDEN, bias=bias), nn.Linear(HIDDEN, OUT, bias=bias)
    return first.double(), second.double()


def _input(shape=(ROWS, IN), wants_grad=True):
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=rng, dtype=torch.float64)
    return x.requires_grad_(wants_grad)


def _backward(y):
    weights = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).view(y.shape) / y.numel()
    (y * weights).sum().backward()


def _one_process(make, shape=(ROWS, IN)):
    x = _input(shape)
    y = make(x)
    _backward(y)
    return y.detach(), x.grad


def _is_near(got, right):
    assert got.shape == right.shape
    assert (got - right).abs().max() <= LIMIT


def _run_pair(rank, world_size, kind, bias):
    first, second = _pair(bias)
    if kind == "naive":
        one, other = GatheringLinear(first), GatheringLinear(second)
    else:
        one, other = ColumnParallelLinear(first), RowParallelLinear(second)
    found = {}
    x = _input()
    with trace() as events:
        y = other(one(x).relu())
        num_forward = len(events)
        _backward(y)
    found |= {"y": y.detach(), "x.grad": x.grad, "names": collectives(events)}
    found["bytes"] = [event.input_bytes for event in events]
    found["num_forward"] = num_forward
    with trace() as events:
        other(one(_input(wants_grad=False)).relu()).sum().backward()
    found["without"] = [event.input_bytes for event in events]
    one.zero_grad()
    other.zero_grad()
    _backward(other(one(_input()).relu()))
    found["grads"] = {
        f"{name}.{key}": p.grad
        for name, layer in (("one", one), ("other", other))
        for key, p in layer.named_parameters()
    }
    found["held"] = sum(p.numel() for layer in (one, other) for p in layer.parameters())
    return packed(found)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_pair_is_one_process_for_one_call_each_way(world_size, bias):
    """
    Output, input gradient, and each part of the weights' gradients are those of one process. The
    counted bytes are those predicted.
    """
    first, second = _pair(bias)
    x = _input()
    y = second(first(x).relu())
    _backward(y)
    for rank, found in enumerate(run_packed(world_size, _run_pair, "cut", bias)):
        _is_near(found["y"], y)
        _is_near(found["x.grad"], x.grad)
        rows = slice(rank * HIDDEN // world_size, (rank + 1) * HIDDEN // world_size)
        right = {"one.weight": first.weight.grad[rows], "other.weight": second.weight.grad[:, rows]}
        if bias:
            right |= {"one.bias": first.bias.grad[rows], "other.bias": second.bias.grad}
            assert found["held"] == held_numbers(IN, HIDDEN, OUT, world_size)
        assert found["grads"].keys() == right.keys()
        for name, gradient in right.items():
            _is_near(found["grads"][name], gradient)
        assert found["names"] == ["all_reduce"] * 2
        assert found["num_forward"] == 1
        assert tuple(found["bytes"]) == pair_bytes(ROWS, IN, OUT, 8)
        assert tuple(found["without"]) == pair_bytes(ROWS, IN, OUT, 8, input_wants_grad=False)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_naive_way_is_right_and_calls_twice_as_often(world_size):
    """
    The naive version is right, since a wrong baseline would prove nothing. It makes twice as many
    calls.
    """
    first, second = _pair()
    right = _one_process(lambda x: second(first(x).relu()))
    for found in run_packed(world_size, _run_pair, "naive", True):
        _is_near(found["y"], right[0])
        _is_near(found["x.grad"], right[1])
        assert found["names"] == ["all_gather"] * 2 + ["all_reduce"] * 2


def _run_torchs(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    model = nn.Sequential(*_pair())
    model.insert(1, nn.ReLU())
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    x = _input()
    with trace() as events:
        y = model(x)
        _backward(y)
    return packed(
        {
            "y": y.detach(),
            "x.grad": x.grad,
            "bytes": [event.input_bytes for event in events],
            "names": collectives(events),
            "grads": {
                "one.weight": model[0].weight.grad.to_local(),
                "one.bias": model[0].bias.grad.to_local(),
                "other.weight": model[2].weight.grad.to_local(),
                "other.bias": model[2].bias.grad.to_local(),
            },
        }
    )


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_pair_is_what_torchs_plan_makes_of_it(world_size):
    """
    torch's plan puts the same parts on the same ranks, with the same bytes. A reader of our layers
    can therefore read DTensor's.
    """
    ours = run_packed(world_size, _run_pair, "cut", True)
    theirs = run_packed(world_size, _run_torchs)
    for own, other in zip(ours, theirs, strict=True):
        for name in ("y", "x.grad"):
            _is_near(own[name], other[name])
        for name, gradient in own["grads"].items():
            _is_near(gradient, other["grads"][name])
        assert own["bytes"] == other["bytes"]
        assert own["names"] == other["names"]


CHANNELS, HEADS, PLACES = 24, 12, 5


def _attention():
    return language_model(9, seed=2, num_channels=CHANNELS, num_heads=HEADS).double()


def _run_blocks(rank, world_size):
    model = _attention()
    attention = ParallelAttention(model.queries_keys_values, model.mix, HEADS)
    mlp = ParallelMLP(model.widen, model.narrow)
    found = {}
    for name, block in (("attention", attention), ("mlp", mlp)):
        x = _input((3, PLACES, CHANNELS))
        with trace() as events:
            y = block(x)
            _backward(y)
        num_bytes = [event.input_bytes for event in events]
        found[name] = (y.detach(), x.grad, collectives(events), num_bytes)
    return packed(found)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_blocks_of_a_transformer_are_one_process(world_size):
    """
    Blocks of a transformer are those of one process. Queries, keys and values are stacked in one
    weight; if it were cut as one matrix, the first rank would get no values.
    """
    model = _attention()
    shape = (3, PLACES, CHANNELS)
    right = {
        "attention": _one_process(lambda x: model.mix(model._attend(x)), shape),
        "mlp": _one_process(lambda x: model.narrow(nn.functional.gelu(model.widen(x))), shape),
    }
    for found in run_packed(world_size, _run_blocks):
        for name, (y, grad, names, num_bytes) in found.items():
            _is_near(y, right[name][0])
            _is_near(grad, right[name][1])
            assert names == ["all_reduce"] * 2
            assert tuple(num_bytes) == pair_bytes(3 * PLACES, CHANNELS, CHANNELS, 8)


def _run_in_pairs(rank, world_size):
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [3, 1])]
    group = groups[rank % 2]
    one, other = (
        ColumnParallelLinear.from_seed(IN, HIDDEN, seed=rank % 2, group=group),
        RowParallelLinear.from_seed(HIDDEN, OUT, seed=7, group=group),
    )
    with trace() as events:
        y = other(one(_input().float()))
    return packed((y.detach(), [event.ranks for event in events]))


def test_pairs_of_other_groups_do_not_meet():
    """
    On a mesh each line has its own layers, and lines do not exchange messages. `from_seed` gives
    the layers of one process.
    """
    results = run_packed(4, _run_in_pairs)
    for rank, (y, met) in enumerate(results):
        with seeded(rank % 2):
            first = nn.Linear(IN, HIDDEN)
        with seeded(7):
            second = nn.Linear(HIDDEN, OUT)
        right = second(first(_input().float()))
        assert (y - right).abs().max() <= 1e-4  # float32: u is half a billion times that of float64
        assert met in ([(0, 2)], [(3, 1)], [(1, 3)])
        assert rank in met[0]


def test_part_of_cuts_each_stacked_matrix_and_leaves_the_whole_free(lone_group):
    """
    Each stacked matrix is cut, and the part is a copy: a view would keep the whole weight in memory
    for as long as the part lives.
    """
    whole = torch.arange(24.0).view(6, 4)
    part = part_of(whole, 0)
    assert part.equal(whole)
    assert part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    assert part_of(whole, -1, num_stacked=2).equal(whole)


def test_layers_that_do_not_fit_are_refused(lone_group):
    """
    Layers that do not fit are refused before a message is sent, so that all ranks raise the same
    error.
    """
    with pytest.raises(BadInput, match=r"Other inputs: RowParallelLinear takes 24 a rank \(got 6"):
        RowParallelLinear(nn.Linear(24, 5))(torch.ones(2, 6))
    with pytest.raises(BadInput, match="rows or columns do not divide: a multiple of 3 expected"):
        ColumnParallelLinear(nn.Linear(4, 8), num_stacked=3)


def _refused(rank, world_size):
    found: list = []
    for make in (
        lambda: ColumnParallelLinear(nn.Linear(4, 9)),
        lambda: RowParallelLinear(nn.Linear(9, 4)),
        lambda: ParallelAttention(nn.Linear(12, 36), nn.Linear(12, 12), num_heads=3),
    ):
        with pytest.raises(BadInput, match="do not divide") as refusal:
            make()
        found.append(str(refusal.value))
    return packed(found)


def test_shapes_that_do_not_divide_are_refused_on_every_rank():
    """
    An uneven cut is refused, because all ranks would wait for the one with the largest part.
    """
    for rank, texts in enumerate(run_packed(2, _refused)):
        assert texts[2] == (
            f"The heads do not divide: a multiple of 2 expected (got 3, rank {rank} of 2). Pad the "
            "layer, or take fewer ranks."
        )


def test_frozen_layers_stay_frozen(lone_group):
    """
    A frozen layer stays frozen when it is sharded. Otherwise a user who trains only an adapter
    would train everything.
    """
    first, second = _pair()
    first.weight.requires_grad_(False)
    second.bias.requires_grad_(False)
    assert not ColumnParallelLinear(first).weight.requires_grad
    assert ColumnParallelLinear(first).bias.requires_grad
    assert not RowParallelLinear(second).bias.requires_grad


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_sent_by_ring_is_what_lesson_03_counts(world_size):
    """
    A ring sends 2 (w - 1) / w of each call's bytes. `costs` predicts the same, where chunks divide.
    """
    num_bytes = pair_bytes(ROWS * 12, IN, OUT)
    right = sum(num_bytes) * 2 * (world_size - 1) // world_size
    assert sent_by_ring(num_bytes, world_size) == right


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_by_heads_on_a_gpu(dtype):
    """
    A GPU's fused attention takes the sharded heads as they are in memory, also in half precision.
    """
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = _attention().to("cuda", dtype)
        attention = ParallelAttention(model.queries_keys_values, model.mix, HEADS)
        x = _input((3, PLACES, CHANNELS)).detach().to("cuda", dtype).requires_grad_()
        right, got = model.mix(model._attend(x)), attention(x)
        got.sum().backward()
        # 24 terms of size 1 or less in each of two layers, rounded to the dtype.
        assert (got - right).abs().max() <= 48 * torch.finfo(dtype).eps
        assert x.grad.isfinite().all()
    finally:
        dist.destroy_process_group()
