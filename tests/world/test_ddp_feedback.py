"""
Communication hooks that make DDP's messages smaller, and the accuracy that they cost.
"""

import pytest
import torch
import torch.distributed as dist
from ddp_shards import net, shard
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel
from worlds import WORLD_SIZES, run_world

from ddp_lessons.ddp import (
    ExactState,
    HalfPrecisionState,
    HookMeter,
    TopKState,
    exact_hook,
    half_precision_hook,
    top_k_hook,
)
from ddp_lessons.errors import BadInput

EPS = torch.finfo(torch.float32).eps
BF16_ROUNDOFF = torch.finfo(torch.bfloat16).eps / 2


def _metered(rank, world_size):
    seen = {}
    states = {
        "exact": (exact_hook, ExactState()),
        "bf16": (half_precision_hook, HalfPrecisionState()),
        "fp16": (half_precision_hook, HalfPrecisionState(dtype=torch.float16)),
        "top-k": (top_k_hook, TopKState(share=0.25)),
        "top-k, all": (top_k_hook, TopKState(share=1.0)),
    }
    for name, (hook, state) in states.items():
        model = DistributedDataParallel(net(), bucket_cap_mb=100 / 2**20)
        meter = HookMeter(model, hook, state)
        assert meter.relative_error == 0.0
        for step in range(3):
            model(shard(rank, step)).square().sum().backward()
            weights = [parameter.grad.clone() for parameter in model.parameters()]
            for weight in weights:
                dist.broadcast(weight, src=0)
            assert all(
                torch.equal(weight, p.grad)
                for weight, p in zip(weights, model.parameters(), strict=True)
            ), "replicas drift apart"
        seen[name] = (meter.exact_bytes, meter.bytes_sent, meter.relative_error)
    return seen


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_hooks_send_less_and_say_what_it_costs(world_size):
    """
    The bytes are exact, the errors are within the bounds of rounding, and all ranks have equal
    gradients.
    """
    num_elements = 40 + 8 + 24 + 3
    # After the first step there are two buckets: 3 + 24 floats reach 100 bytes, then 8 + 40.
    num_picked = 19 + 2 * (7 + 12)  # a quarter of 75, of 27 and of 48, rounded up
    for seen in run_world(world_size, _metered):
        assert [exact for exact, _, _ in seen.values()] == [3 * 4 * num_elements] * 5
        assert {name: sent for name, (_, sent, _) in seen.items()} == {
            "exact": 3 * 4 * num_elements,
            "bf16": 3 * 2 * num_elements,
            "fp16": 3 * 2 * num_elements,
            "top-k": (4 + 4) * num_picked,
            "top-k, all": 3 * (4 + 4) * num_elements,
        }
        error = {name: relative for name, (_, _, relative) in seen.items()}
        assert error["exact"] <= EPS, "a division and a multiplication by 1 / w differ by one unit"
        # Additions in the order of ranks or of a ring have w - 1 roundings each, and terms may have
        # opposite signs.
        assert error["top-k, all"] <= 16 * world_size * EPS
        # There is one rounding before the message, w - 1 in it, and the last step's residual. The
        # factor 16 leaves room for gradients of opposite signs, whose mean is smaller than its
        # terms.
        assert 0 < error["bf16"] <= 16 * (world_size + 1) * BF16_ROUNDOFF
        assert 0 < error["fp16"] <= 16 * (world_size + 1) * 2**-11
        assert error["fp16"] < error["bf16"] < error["top-k"]


def _feedback(rank, world_size, error_feedback):
    """
    Send a gradient of thirds 64 times in bfloat16. Return the relative error of the sum.
    """
    num_steps = 64
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(3, 1, bias=False), nn.Linear(1, 1)), bucket_cap_mb=1 / 2**20
    )
    state = HalfPrecisionState(error_feedback=error_feedback)
    model.register_comm_hook(state, half_precision_hook)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    total = torch.zeros(1, 3, dtype=torch.float64)
    for _ in range(num_steps):
        model.zero_grad()
        model(torch.full((1, 3), 1 / 3)).sum().backward()
        total += model.module[0].weight.grad.double()
    exact = num_steps * torch.tensor(1 / 3, dtype=torch.float32).double()
    return ((total - exact).abs().max() / (1 / 3)).item()


@pytest.mark.parametrize("world_size", [1, 2])
def test_error_feedback_keeps_errors_from_adding_up(world_size):
    """
    Without feedback 64 equal rounding errors add up. With feedback the sum lacks at most one
    residual.

        This also holds from the first step to the second, when DDP rebuilds its buckets. All ranks
        send equal numbers, so that the two halves add without rounding.
    """
    # The bound is one residual, half a unit of bfloat16, and the rounding of 64 additions in
    # float32.
    bound = BF16_ROUNDOFF + 2 * 64 * EPS
    assert max(run_world(world_size, _feedback, True)) <= bound
    assert min(run_world(world_size, _feedback, False)) > 20 * bound


def _top_k_in_turns(rank, world_size, error_feedback):
    """
    Send the gradient (8, 5, 3, 2) eight times, one element each time. Return the sum.
    """
    model = DistributedDataParallel(nn.Linear(4, 1, bias=False))
    model.register_comm_hook(TopKState(error_feedback=error_feedback, share=0.25), top_k_hook)
    total = torch.zeros(1, 4)
    for _ in range(8):
        model.zero_grad()
        model(torch.tensor([[8.0, 5.0, 3.0, 2.0]])).sum().backward()
        total += model.module.weight.grad
    return total[0].tolist()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_top_k_reaches_every_element_only_with_feedback(world_size):
    """
    Without feedback an element that is never the largest is never sent. With feedback its residual
    grows until it is the largest.

        By hand: elements 0, 1, 0, 2, 0, 1, 0, 3 are sent, with values 8, 10, 16, 12, 16, 20, 16,
            16.
    """
    with_feedback = run_world(world_size, _top_k_in_turns, True)
    assert with_feedback == [[56.0, 30.0, 12.0, 16.0]] * world_size
    without = run_world(world_size, _top_k_in_turns, False)
    assert without == [[64.0, 0.0, 0.0, 0.0]] * world_size


def _power_sgd(rank, world_size):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(40, 30, bias=False))
    state = power_sgd.PowerSGDState(
        None, matrix_approximation_rank=world_size, start_powerSGD_iter=2, min_compression_rate=1
    )
    meter = HookMeter(model, power_sgd.powerSGD_hook, state)
    for step in range(3):  # DDP rebuilds its buckets after the first; torch's hook waits for that
        model.zero_grad()
        model(shard(rank, step, num_samples=1, width=40)).square().sum().backward()
    return meter.exact_bytes, meter.bytes_sent, meter.relative_error


@pytest.mark.parametrize("world_size", [1, 2])
def test_hook_meter_measures_torchs_power_sgd(world_size):
    """
    With one sample a rank the gradient has matrix rank w, so PowerSGD of rank w sends it without
    loss.
    """
    for exact_bytes, sent_bytes, error in run_world(world_size, _power_sgd):
        assert exact_bytes == 3 * 4 * 1200
        assert sent_bytes == 4 * world_size * (40 + 30), "P and Q, in the third step alone"
        # The bound covers products of 40 and 30 terms, and an orthogonalisation of columns that are
        # not parallel.
        assert error <= 40 * 30 * EPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_half_precision_refuses_other_dtypes(dtype):
    """
    Only 16-bit dtypes are allowed: float32 would save nothing, and int8 holds no fractions.
    """
    with pytest.raises(BadInput, match=r"^Bad dtype: it must be bfloat16 or float16 \(got torch"):
        HalfPrecisionState(dtype=dtype)


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan")])
def test_top_k_refuses_a_share_that_is_none(share):
    """
    A share of 0, below 0, above 1 or nan is refused, since a hook that sends nothing learns
    nothing.
    """
    with pytest.raises(BadInput, match=r"^Bad share: it must be more than 0 and at most 1 \(got "):
        TopKState(share=share)
