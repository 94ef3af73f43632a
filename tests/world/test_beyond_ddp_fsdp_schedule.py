"""
Bytes that a fully sharded model holds, and the order of its calls, which values alone do not show.
"""

import pytest
import torch
from failed_work import FailedWork
from metric_shards import packed, run_packed
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from worlds import WORLD_SIZES, run_world

from ddp_lessons.beyond_ddp.fsdp import (
    FullySharded,
    foretold_held_bytes,
    foretold_sent_bytes,
    held_bytes,
)
from ddp_lessons.beyond_ddp.fsdp.example import WAYS, deep_model, make, small_model, train
from ddp_lessons.trace import bytes_sent, gather, trace

WIDTH, NUM_LAYERS = 12, 4
SIZE = WIDTH * WIDTH + WIDTH  # numbers of a layer


def layers():
    """
    Return equal layers with the same weights on every rank.
    """
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))


def _calls(rank, world_size, options):
    model = FullySharded(layers(), **options)
    found = []
    for _ in range(2):
        with trace() as events:
            loss = model(torch.ones(2, WIDTH)).sum()
            between = model.gathered_bytes
            loss.backward()
        calls = [e for e in events if e.is_communication]
        order = sorted(
            [(e.index, e.name[:3], "ask") for e in calls]
            + [(e.wait_index, e.name[:3], "wait") for e in calls]
        )
        found.append(
            {
                "order": [told for _, *told in order],
                "bytes": [(e.name, e.input_bytes, e.output_bytes, e.dtype) for e in calls],
                "in backward": [e.backward is not None for e in calls],
                "between": between,
                "after": model.gathered_bytes,
                "gradients": sum(p.grad.nbytes for p in model.parameters()),
                "most": model.most_gathered_bytes,
            }
        )
    return found


def padded(world_size):
    """
    Return the bytes of one gathered layer.
    """
    return -(-SIZE // world_size) * world_size * 4


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_layers_are_gathered_freed_and_asked_for_ahead(world_size):
    """
    From the second forward on, the next layer's all-gather begins before the layer before it
    computes. At most two layers are gathered at a time.
    """
    table = padded(world_size)
    for first, second in run_world(world_size, _calls, {}):
        for found in (first, second):
            assert [name for name, *_ in found["bytes"][:NUM_LAYERS]] == (
                ["all_gather_into_tensor"] * NUM_LAYERS
            )
            assert found["in backward"] == [False] * NUM_LAYERS + [True] * 2 * NUM_LAYERS
            assert found["between"] == found["after"] == 0
            assert found["gradients"] == NUM_LAYERS * table // world_size
            assert found["most"] == 2 * table
        ask, wait = ["all", "ask"], ["all", "wait"]
        ahead = [ask, wait, *[ask, wait] * (NUM_LAYERS - 1)]
        assert first["order"][: 2 * NUM_LAYERS] == ahead  # it does not know the order yet
        # ask 1, wait 1, ask 2 (compute 1), wait 2, ask 3 (compute 2), ...
        forward = second["order"][: 2 * NUM_LAYERS]
        assert forward == ahead
        reduce, reduced = ["red", "ask"], ["red", "wait"]
        backward = [ask, wait, ask, reduce, wait, ask, reduce, reduced]
        assert second["order"][2 * NUM_LAYERS :][:8] == backward
        gathers = [b for b in second["bytes"] if b[0].startswith("all")]
        assert gathers == [("all_gather_into_tensor", table // world_size, table, "float32")] * 8
        reduces = [b for b in second["bytes"] if b[0].startswith("red")]
        assert reduces == [("reduce_scatter_tensor", table, table // world_size, "float32")] * 4


def test_options_trade_memory_for_messages():
    """
    With `reshard_after_forward=False` there is one all-gather for each layer. Without prefetch one
    layer is gathered at a time. With one unit there are two messages. In bfloat16 an all-gather has
    half the bytes.
    """
    table = padded(2)
    for _, kept in run_world(2, _calls, {"reshard_after_forward": False}):
        assert len(kept["bytes"]) == 2 * NUM_LAYERS
        assert kept["between"] == NUM_LAYERS * table
        assert kept["after"] == 0
    for _, alone in run_world(2, _calls, {"prefetch": False}):
        assert alone["most"] == table
    for _, once in run_world(2, _calls, {"units": ()}):
        assert len(once["bytes"]) == 2
        assert once["between"] == NUM_LAYERS * table
    low = {"compute_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    for _, mixed in run_world(2, _calls, low):
        dtypes = {name: (dtype, num) for name, num, _, dtype in mixed["bytes"]}
        assert dtypes["all_gather_into_tensor"] == ("bfloat16", table // 4)
        assert dtypes["reduce_scatter_tensor"] == ("float32", table)


def _forward_order(rank, world_size):
    seen = []
    model = FullySharded(layers())
    for _ in range(2):
        for number, layer in enumerate(model.module):
            told = lambda *_, n=number: seen.append((n, _whole(model)))  # noqa: E731
            layer.register_forward_pre_hook(told)
        model(torch.ones(2, WIDTH))
    return seen[:NUM_LAYERS], seen[-2 * NUM_LAYERS :: 2]


def _whole(model):
    return [number for number, unit in enumerate(model.units) if unit.gathered_bytes]


def test_forward_asks_for_what_came_next_last_time():
    """
    From the second forward on, the next layer's all-gather is on its way when a layer begins to
    compute.
    """
    for first, second in run_world(2, _forward_order):
        assert first == [(number, [number]) for number in range(NUM_LAYERS)]
        assert second[:-1] == [(n, [n, n + 1]) for n in range(NUM_LAYERS - 1)]
        assert second[-1] == (NUM_LAYERS - 1, [NUM_LAYERS - 1])


def _foretold(rank, world_size):
    found = {}
    for way in WAYS:
        model, optimizer = make(way)
        held = train(model, optimizer, [(torch.ones(4, 64), torch.zeros(4, dtype=torch.long))])
        found[way] = held
    model = deep_model()
    with trace() as events:
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters())
    found["torch"] = train(
        model, optimizer, [(torch.ones(4, 64), torch.zeros(4, dtype=torch.long))]
    )
    model, _ = make("FSDP")
    with trace() as events:
        model(torch.ones(4, 64)).sum().backward()
    found["sent"] = bytes_sent(gather(events))
    return found


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_bytes_are_those_foretold(world_size):
    """
    Bytes held and sent are those predicted, for our sharding and torch's. `costs` counts what a
    ring sends, and the trace shows the calls.
    """
    sizes = [sum(p.numel() for p in part.parameters()) for part in deep_model()]
    sizes = [size for size in sizes if size]
    answers = run_world(world_size, _foretold)
    held = foretold_held_bytes(sizes, world_size)
    for found in answers:
        assert found["FSDP"] == held
        assert found["DDP"]["parameters"] == found["ZeRO-1"]["gradients"] == 4 * sum(sizes)
        assert abs(found["ZeRO-2"]["gradients"] - held["gradients"]) <= 4 * 20
        # torch shards by rows, so a rank has at most three rows of 256 more or fewer of the last
        # layer
        assert abs(found["torch"]["parameters"] - held["parameters"]) <= 4 * 3 * 257
        assert found["torch"]["optimizer"] == 2 * found["torch"]["parameters"]
    sent = foretold_sent_bytes(sizes, world_size)
    assert sent["all_gather"] == 2 * sent["reduce_scatter"]
    kept = foretold_sent_bytes(sizes, world_size, reduce_bytes=2, num_gathers=1)
    assert kept["all_gather"] * 2 == sent["all_gather"]
    assert kept["reduce_scatter"] * 2 == sent["reduce_scatter"]


def _accumulated(rank, world_size):
    model = FullySharded(layers().double())
    batches = [torch.full((2, WIDTH), float(rank + step)).double() for step in range(3)]
    with trace() as quiet, model.no_sync():
        for batch in batches[:2]:
            model(batch).square().mean().backward()
    held = held_bytes(model, torch.optim.SGD(model.parameters(), lr=1.0))["gradients"]
    with trace() as loud:
        model(batches[2]).square().mean().backward()
    once = [shard.grad.clone() for shard in model.shards]
    model.zero_grad()
    for batch in batches:
        model(batch).square().mean().backward()
    each = [shard.grad.clone() for shard in model.shards]
    with model.no_sync():
        model(batches[0]).square().mean().backward()
    model.zero_grad()
    left = held_bytes(model, torch.optim.SGD(model.parameters(), lr=1.0))["gradients"]
    names = [[e.name for e in events if e.is_communication] for events in (quiet, loud)]
    return packed((names, held, left, once, each))


def test_no_sync_adds_up_and_sends_once():
    """
    In `no_sync` the all-gathers stay, and two of three reduce-scatters are saved. The price is the
    memory of all gradients.
    """
    for names, held, left, once, each in run_packed(2, _accumulated):
        assert [one.count("reduce_scatter_tensor") for one in names] == [0, NUM_LAYERS]
        assert names[0].count("all_gather_into_tensor") == 2 * 2 * NUM_LAYERS
        assert held == NUM_LAYERS * SIZE * 8
        assert left == 0
        for one, other in zip(once, each, strict=True):
            # sums of six products below 1e4 in float64
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


class _Recomputed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.blocks, self.reentrant = layers(), reentrant

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def _recomputed(rank, world_size):
    found = []
    for module in (layers(), _Recomputed(False)):
        model = FullySharded(module.double())
        for _ in range(2):
            model(torch.ones(2, WIDTH).double()).square().mean().backward()
        found.append([shard.grad for shard in model.shards])
        assert model.gathered_bytes == 0
    return packed(found)


def test_activations_may_be_computed_again_in_backward():
    """
    A forward in the middle of backward, as checkpointing makes it, must not free parameters that
    backward needs.
    """
    for plain, again in run_packed(2, _recomputed):
        assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("on purpose")


def _model_and_gradients():
    model = FullySharded(layers().double())
    x = torch.ones(2, WIDTH).double()
    model(x).square().mean().backward()
    right = [shard.grad.clone() for shard in model.shards]
    model.zero_grad()
    return model, x, right


def _broken_off(rank, world_size):
    model, x, right = _model_and_gradients()
    fails = model.module[1].register_forward_pre_hook(lambda _, args: (_Raises.apply(*args),))
    with pytest.raises(RuntimeError, match="on purpose"):
        model(x).square().mean().backward()
    fails.remove()
    model(x).square().mean().backward()
    in_forward = model.module[2].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(x)
    in_forward.remove()
    return packed((right, [shard.grad for shard in model.shards], model.gathered_bytes))


def test_what_was_broken_off_is_forgotten():
    """
    After an error in backward or forward the next step gives the gradients that it would give
    without that error.
    """
    for right, got, gathered in run_packed(2, _broken_off):
        assert gathered == 0
        assert all(torch.equal(one, other) for one, other in zip(right, got, strict=True))


def _lost_group(rank, world_size):
    model, x, right = _model_and_gradients()
    flat = model.units[0].flats[0]
    flat._gathering = FailedWork(), None
    with pytest.raises(RuntimeError, match="Connection closed"):
        model(x)
    gathering, reducing = FailedWork(), FailedWork()
    flat._gathering, flat._reducing = (gathering, None), (reducing, None, None)
    model.zero_grad()
    flat.finish_reduce()  # zero_grad has dropped it, so there is nothing left to wait for
    assert gathering.num_waits == reducing.num_waits == 1
    model(x).square().mean().backward()
    return packed((right, [shard.grad for shard in model.shards], model.gathered_bytes))


def test_what_was_under_way_when_the_group_ended_is_asked_for_anew():
    """
    A gather that was on its way when the group ended raises its error once. The next step gathers
    again and does not raise.
    """
    for right, got, gathered in run_packed(2, _lost_group):
        assert gathered == 0
        assert all(torch.equal(one, other) for one, other in zip(right, got, strict=True))


def test_models_have_the_numbers_that_the_lesson_names():
    """
    The lesson predicts bytes from these numbers of parameters.
    """
    counted = [sum(p.numel() for p in make().parameters()) for make in (deep_model, small_model)]
    assert counted == [545546, 2410]
