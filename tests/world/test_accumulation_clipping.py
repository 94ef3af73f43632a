"""
Gradients are clipped by the norm of the whole model, after the all-reduce.
"""

import math

import pytest
import torch
import torch.distributed as dist
from accumulation_toy import (
    EPS,
    SHARES,
    Toy,
    exactly,
    gradients,
    mean_loss,
    oracle,
    parts_of,
    run_window,
    samples,
    sent,
    sized,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import WORLD_SIZES, run_world

from ddp_lessons.accumulation import clip_gradients
from ddp_lessons.errors import BadInput


def _clip(rank, world_size):
    everyone, own = sized(rank, "unequal", world_size)
    parts = parts_of(rank, everyone)
    model = DistributedDataParallel(Toy())
    run_window(model, parts, sizes=own, across_ranks=True)
    norm = clip_gradients(model.parameters(), 0.5)
    after = gradients(model)

    bare = Toy()  # the result of clipping before the sync
    run_window(bare, parts, sizes=own, across_ranks=True)
    norm_local = clip_gradients(bare.parameters(), 0.5)
    early = gradients(bare)
    dist.all_reduce(early)

    # Each of three ranks keeps a part of the gradients; a fourth rank keeps none.
    sharded = []
    if rank < 3:
        shard = gradients(_whole_model(everyone)).tensor_split(min(3, world_size))[rank]
        sharded = [nn.Parameter(torch.zeros_like(shard))]
        sharded[0].grad = shard
    norm_sharded = clip_gradients(sharded, 0.5, sharded=True)
    return {
        "norm": norm.item(),
        "after": sent(after),
        "norm_local": norm_local.item(),
        "early": sent(early / world_size),
        "norm_sharded": norm_sharded.item(),
        "shard": sent(sharded[0].grad) if sharded else [],
    }


def _whole_model(everyone):
    model = Toy()
    mean_loss(model, *samples(sum(map(sum, everyone)))).backward()
    return model


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_clipping_after_the_sync_is_that_of_one_process(world_size):
    """
    After the sync all ranks compute the same norm. If gradients are clipped before the sync, each
    rank has another norm, and the average gradient is wrong.
    """
    everyone = SHARES["unequal"][:world_size]
    whole = _whole_model(everyone)
    norm = nn.utils.clip_grad_norm_(whole.parameters(), 0.5).item()
    expected = gradients(whole)
    results = run_world(world_size, _clip)
    # The norm is a sum of 16 squares, and each gradient carries the rounding error of `oracle`.
    _, bound = oracle(sum(map(sum, everyone)))
    rel = (bound.norm() / norm).item() + 16 * EPS
    for result in results:
        assert result["norm"] == pytest.approx(norm, rel=rel)
        # Scaling multiplies the rounding of the gradient and of the norm by 0.5 / norm.
        assert (exactly(result["after"]) - expected).abs().max() <= 2 * rel
        assert result["norm_sharded"] == pytest.approx(norm, rel=rel)
    assert len({result["norm"] for result in results}) == 1
    assert len({result["norm_sharded"] for result in results}) == 1
    whole_again = exactly([number for result in results for number in result["shard"]])
    assert (whole_again - expected).abs().max() <= 2 * rel
    if world_size > 1:
        assert len({result["norm_local"] for result in results}) > 1
        assert (exactly(results[0]["early"]) - expected).abs().max() > 0.01


def test_clip_gradients_equals_torchs_and_leaves_small_ones_alone():
    """
    `clip_gradients` agrees with torch for float32, non-contiguous, empty and missing gradients, and
    for no parameters at all. Gradients below the limit do not change.
    """
    ours = [nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(0))]
    ours += [nn.Parameter(torch.zeros(2))]
    ours[0].grad = torch.arange(12.0).reshape(4, 3).T
    ours[1].grad = torch.zeros(0)
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    theirs[0].grad, theirs[1].grad = ours[0].grad.clone(), torch.zeros(0)
    norm = clip_gradients(iter(ours), 2.0)
    expected = nn.utils.clip_grad_norm_(theirs, 2.0)
    # torch adds 12 squares in float32: 12 roundings there, and a few for the scaling.
    eps = torch.finfo(torch.float32).eps
    assert norm.item() == pytest.approx(expected.item(), rel=12 * eps)
    assert torch.allclose(ours[0].grad, theirs[0].grad, rtol=16 * eps, atol=0)
    assert ours[0].grad.dtype == torch.float32
    before = ours[0].grad.clone()
    clip_gradients(ours[0], 1e6)
    assert torch.equal(ours[0].grad, before)
    assert clip_gradients([], 1.0).item() == 0.0
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(BadInput, match=r"^Bad norm"):
            clip_gradients(ours, wrong)


def test_clip_gradients_sees_norms_that_float32_cannot_square():
    """
    The norm is right for values whose squares float32 cannot hold: 1e30 overflows, and 1e-30
    vanishes.
    """
    for value in (1e30, 1e-30):
        parameter = nn.Parameter(torch.zeros(1))
        parameter.grad = torch.full((1,), value)
        stored = parameter.grad.item()  # as float32 holds it
        # The bound covers one square and one root, each of which is rounded.
        assert clip_gradients([parameter], 1.0).item() == pytest.approx(stored, rel=2 * EPS)


def test_sharded_clipping_in_a_group_of_one(lone_group):
    """
    In a group of one rank the only shard is the whole gradient, so the norm is that of the shard.
    """
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([parameter], 1.0, sharded=True).item() == 5.0
