"""
BatchNorm over all ranks equals, apart from rounding, that of one process with the whole batch.
"""

import copy

import pytest
import torch
from metric_shards import packed, part_of, run_packed
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from worlds import WORLD_SIZES

from ddp_lessons.errors import BadInput
from ddp_lessons.metrics import SyncBatchNorm, all_rank_statistics, with_sync_batch_norm
from ddp_lessons.trace import collectives, trace
from ddp_lessons.workloads import batch_norm_model, digits_batch, load_digits

EPS = torch.finfo(torch.float64).eps
NUM_CHANNELS = 5
SHAPES = [(14, NUM_CHANNELS), (9, NUM_CHANNELS, 3), (7, NUM_CHANNELS, 2, 3)]


def _batch(shape, offset=0.0, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x, grad = torch.randn((2, *shape), generator=rng, dtype=torch.float64)
    return x + offset, grad


def _layer(momentum=0.1, **options):
    layer = nn.BatchNorm2d(NUM_CHANNELS, momentum=momentum, **options).double()
    if layer.weight is not None:
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(0.5, 2, NUM_CHANNELS))
            layer.bias.copy_(torch.linspace(-1, 1, NUM_CHANNELS))
    return layer


class _Whole(nn.Module):
    # This is torch's BatchNorm for any number of dimensions.
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.reshape(*x.shape[:2], -1, 1)).view(x.shape)


def _run(rank, world_size, shape, offset, momentum):
    whole, grad = _batch(shape, offset)
    layer = with_sync_batch_norm(_layer(momentum))
    found = []
    for _ in range(2):
        x = part_of(whole, rank, world_size).clone().requires_grad_()
        with trace() as forward:
            y = layer(x)
        layer.zero_grad()
        with trace() as backward:
            y.backward(part_of(grad, rank, world_size))
        found.append((y.detach(), x.grad, layer.weight.grad, layer.bias.grad))
    with trace() as eval_events:
        layer.eval()(part_of(whole, rank, world_size))
    calls = [
        [(event.name, event.input_bytes) for event in events]
        for events in (forward, backward, eval_events)
    ]
    return packed((found, dict(layer.named_buffers()), calls))


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("offset", "momentum"), [(0.0, 0.1), (1e6, None)])
def test_forward_and_backward_equal_one_process(world_size, shape, offset, momentum):
    """
    Outputs, gradients, running statistics and their count equal those of one process, also with a
    rank without samples.
    """
    whole, grad = _batch(shape, offset)
    layer = _layer(momentum)
    for _ in range(2):
        x = whole.clone().requires_grad_()
        y = _Whole(layer)(x)
        layer.zero_grad()
        y.backward(grad)
    results = run_packed(world_size, _run, shape, offset, momentum)
    # A value of size `offset` has an error of half an EPS of it, and so has a mean; their
    # difference has size 1. All later results have that relative error, times the number of values
    # of a channel.
    slack = 8 * whole.numel() / NUM_CHANNELS * EPS * (1 + offset)
    last = [found[-1] for found, _, _ in results]
    torch.testing.assert_close(torch.cat([one[0] for one in last]), y, rtol=0, atol=slack)
    torch.testing.assert_close(torch.cat([one[1] for one in last]), x.grad, rtol=0, atol=4 * slack)
    for part, right in ((2, layer.weight.grad), (3, layer.bias.grad)):
        total = sum(one[part] for one in last)  # one process has the sum over ranks
        torch.testing.assert_close(total, right, rtol=0, atol=100 * slack)
    for _, buffers, calls in results:
        for name, buffer in layer.named_buffers():
            assert torch.equal(buffers[name], results[0][1][name]), "to the last bit"
            rest = {"rtol": slack, "atol": slack}
            torch.testing.assert_close(buffers[name], buffer, **rest)
        gathered, reduced = 8 * (1 + 2 * NUM_CHANNELS), 8 * 2 * NUM_CHANNELS
        assert calls == [[("all_gather", gathered)], [("all_reduce", reduced)], []]


def _far(rank, world_size):
    # The values are around 1e8 with a spread of 1 in float64: their squares, 1e16, have lost the
    # digits of the spread.
    whole, _ = _batch((40, NUM_CHANNELS), offset=1e8)
    own = part_of(whole, rank, world_size)
    _, _, variance = all_rank_statistics(own)
    _, _, single = all_rank_statistics(own.float() - 1e8, torch.float32)
    squares = torch.stack([own.sum(0), own.square().sum(0)])
    torch.distributed.all_reduce(squares)
    naive = squares[1] / 40 - (squares[0] / 40).square()
    return packed((variance, single, naive))


def test_variance_far_from_zero():
    """
    Computed from sums of squares, the variance is wrong where the mean is far from 0. Ours is
    right.
    """
    whole, _ = _batch((40, NUM_CHANNELS), offset=1e8)
    right = whole.var(0, correction=0)
    for variance, single, naive in run_packed(3, _far):
        torch.testing.assert_close(variance, right, rtol=40 * EPS * 1e8, atol=0)
        assert ((naive - right).abs() / right).max() > 0.1
        assert single.dtype == torch.float64
        near = (whole.float() - 1e8).double().var(0, correction=0)
        rtol = 40 * torch.finfo(torch.float32).eps * 8  # float32 has steps of 8 there
        torch.testing.assert_close(single, near, rtol=rtol, atol=0)


def _of_dtype(rank, world_size, dtype, statistics):
    whole, grad = _batch((12, NUM_CHANNELS), seed=2)
    layer = SyncBatchNorm(NUM_CHANNELS, statistics_dtype=statistics)
    x = part_of(whole.to(dtype), rank, world_size).clone().requires_grad_()
    y = layer(x)
    y.backward(part_of(grad.to(dtype), rank, world_size))
    return packed((y.detach(), x.grad, layer.weight.grad, layer.running_mean))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("statistics", [torch.float32, torch.float64], ids=str)
def test_low_precision_inputs_round_once(dtype, statistics):
    """
    The output has the dtype of the input, and its only large error is the rounding of its last
    digit.
    """
    whole, grad = (one.to(dtype).double() for one in _batch((12, NUM_CHANNELS), seed=2))
    layer, x = nn.BatchNorm1d(NUM_CHANNELS).double(), whole.clone().requires_grad_()
    y = layer(x)
    y.backward(grad)
    results = run_packed(3, _of_dtype, dtype, statistics)
    unit, wide = torch.finfo(dtype).eps / 2, 12 * 8 * torch.finfo(statistics).eps
    for part, right in ((0, y), (1, x.grad)):
        got = torch.cat([result[part] for result in results])
        assert got.dtype == dtype
        most_off = right.abs() * unit + wide  # numbers of about 1
        assert ((got.double() - right).abs() <= 1.001 * most_off).all()
    assert {result[2].dtype for result in results} == {torch.float32}
    assert {result[3].dtype for result in results} == {torch.float32}


def test_layers_without_weights_or_statistics(lone_group):
    """
    Layers without weights or without running statistics work as torch's do.
    """
    whole, grad = _batch((6, NUM_CHANNELS))
    for options in ({"affine": False}, {"track_running_stats": False}):
        theirs = nn.BatchNorm1d(NUM_CHANNELS, **options).double()
        ours = with_sync_batch_norm(copy.deepcopy(theirs))
        results = []
        for layer in (theirs, ours):
            x = whole.clone().requires_grad_()
            y = layer(x)
            y.backward(grad)
            results.append((y, x.grad, layer.eval()(whole)))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=8 * 6 * EPS)


def _steps(model, images, labels):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.double()), labels).backward()
        optimizer.step()


def _train(rank, world_size):
    images, labels = digits_batch(load_digits(), 24)
    model = with_sync_batch_norm(batch_norm_model(seed=0)).double()
    _steps(DDP(model), images[rank::world_size], labels[rank::world_size])
    return packed(model.state_dict())


@pytest.mark.parametrize("world_size", [2, 4])
def test_training_in_ddp_is_that_of_one_process(world_size):
    """
    In backward the layer's messages and those of DDP's reducer are interleaved, in the same order
    on every rank.
    """
    images, labels = digits_batch(load_digits(), 24)
    model = batch_norm_model(seed=0).double()
    _steps(model, images, labels)
    for state in run_packed(world_size, _train):
        for name, right in model.state_dict().items():
            # Three steps, each with sums of 24 samples and 64 features of about 1.
            torch.testing.assert_close(state[name], right, rtol=0, atol=3 * 24 * 64 * EPS)


def test_input_without_gradient_sends_nothing_back(lone_group):
    """
    A model's first layer needs no gradient of its input, so backward sends no message.
    """
    layer = SyncBatchNorm(NUM_CHANNELS)
    y = layer(torch.randn(4, NUM_CHANNELS))
    with trace() as events:
        y.sum().backward()
    assert collectives(events) == []
    assert torch.equal(layer.bias.grad, torch.full((NUM_CHANNELS,), 4.0))


def test_too_few_values_and_dimensions(lone_group):
    """
    A single value has no variance, and a vector has no channels: both are refused.
    """
    layer = SyncBatchNorm(3)
    with pytest.raises(BadInput, match=r"expected 2 or more over all ranks \(got 1, rank 0 of 1\)"):
        layer(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="2 dimensions or more"):
        layer(torch.zeros(3))


def test_conversion_keeps_parameters_and_modes():
    """
    The conversion keeps parameters, so that no training is lost and an optimizer still holds them.
    It also keeps modes.
    """
    model = nn.Sequential(
        nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4, eps=0.1, momentum=None), nn.ReLU())
    )
    parameters, buffers = list(model.parameters()), dict(model.named_buffers())
    model[1].eval()
    again = with_sync_batch_norm(with_sync_batch_norm(model))
    assert again is model
    layer = model[1][0]
    assert type(layer) is SyncBatchNorm
    assert (layer.eps, layer.momentum, layer.training) == (0.1, None, False)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert model.training


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_against_torchs_own_on_a_gpu():
    """
    torch's SyncBatchNorm runs only on GPUs. There both must give the same results.
    """
    import torch.distributed as dist

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        whole, grad = _batch((16, NUM_CHANNELS, 4))
        results = []
        for kind in (nn.SyncBatchNorm, SyncBatchNorm):
            layer = kind(NUM_CHANNELS).cuda()
            x = whole.float().cuda().requires_grad_()
            y = layer(x)
            y.backward(grad.float().cuda())
            results.append((y, x.grad, layer.weight.grad, layer.running_mean, layer.running_var))
        for one, other in zip(*results, strict=True):
            # 64 values a channel, added in float32 by torch's
            unit = 64 * torch.finfo(torch.float32).eps
            torch.testing.assert_close(one, other, rtol=unit, atol=8 * unit)
    finally:
        dist.destroy_process_group()
