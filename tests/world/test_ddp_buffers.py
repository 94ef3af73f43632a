"""
Buffers under DDP: which rank's statistics survive.
"""

import pytest
import torch
from ddp_shards import shard
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.ddp import (
    buffer_spread,
    pool_batch_norm,
)
from ddp_lessons.errors import BadInput


def _whole_batch_statistics(rank, world_size, num_samples):
    shards = [100 + shard(r, num_samples=n).double() for r, n in enumerate(num_samples)]
    alone, ours = nn.BatchNorm1d(5, momentum=1.0), nn.BatchNorm1d(5, momentum=1.0)
    ours = nn.Sequential(ours, nn.BatchNorm1d(5, track_running_stats=False)).double()
    alone.double()(torch.cat(shards))
    ours[0](shards[rank])
    spread = buffer_spread(ours)
    pool_batch_norm(ours, len(shards[rank]))
    return (
        spread,
        buffer_spread(ours),
        ((ours[0].running_mean - alone.running_mean).abs() / 100).max().item(),
        ((ours[0].running_var - alone.running_var).abs() / alone.running_var).max().item(),
    )


@pytest.mark.parametrize("num_samples", [(6,), (4, 4), (2, 7), (3, 5, 4), (2, 2, 9, 4)])
def test_pool_batch_norm_equals_one_process_on_the_whole_batch(num_samples):
    """
    After one batch with momentum 1, pooled statistics equal those of all samples in one process,
    also for values far from zero.
    """
    eps = torch.finfo(torch.float64).eps
    for before, after, mean_error, variance_error in run_world(
        len(num_samples), _whole_batch_statistics, num_samples
    ):
        assert (before["0.running_mean"] > 0) == (len(num_samples) > 1)
        assert before["0.num_batches_tracked"] == 0.0
        assert set(after.values()) == {0.0}
        num_roundings = sum(num_samples) + len(num_samples) + 10
        assert mean_error <= num_roundings * eps
        # Values near 100 deviate by about 1, so a rounding error of a value counts 100 times in the
        # variance.
        assert variance_error <= 2 * 100 * num_roundings * eps


def _too_few(rank, world_size):
    with pytest.raises(BadInput) as refused:
        pool_batch_norm(nn.BatchNorm1d(3), 1 if rank == 1 else 5)
    return str(refused.value)


def test_pool_batch_norm_refuses_one_value_on_every_rank():
    """
    One value has no variance. All ranks raise, because the others would wait.
    """
    message = (
        "Too few values: every channel needs 2 or more to have a variance "
        "(got 1, rank 1 of 2). Use a larger shard."
    )
    assert run_world(2, _too_few) == [message] * 2


def _buffers_of_ddp(rank, world_size, broadcast):
    model = DistributedDataParallel(nn.BatchNorm1d(5, momentum=0.5), broadcast_buffers=broadcast)
    for _ in range(20):
        model(shard(0) + 10.0 * rank).sum().backward()  # rank r sees values around 10 * r
    model.eval()
    with torch.no_grad():
        model(shard(0))
    after = buffer_spread(model.module)["running_mean"]
    middle = model.module.running_mean.mean().item()
    pool_batch_norm(model.module, 4)
    return after, middle, model.module.running_mean.mean().item(), hasattr(model, "sync_buffers")


def test_ddp_broadcasts_rank_0s_statistics_and_no_one_elses():
    """
    There is no `sync_buffers`; each forward copies rank 0's buffers, so statistics of other shards
    are lost (claim C14).

        Without broadcasts they can be pooled: the values are around 5, the middle of 0 and 10.
            After 20 batches with momentum 0.5 the first statistics have weight 2**-20, of 10 at
            most.
    """
    offset = shard(0).mean().item()
    for after, middle, _, has_method in run_world(2, _buffers_of_ddp, True):
        assert not has_method
        assert after == 0.0
        assert middle == pytest.approx(offset, abs=1e-4)
    apart = run_world(2, _buffers_of_ddp, False)
    for rank, (after, middle, pooled, _) in enumerate(apart):
        assert after == pytest.approx(10, abs=1e-4)
        assert middle == pytest.approx(offset + 10 * rank, abs=1e-4)
        assert pooled == pytest.approx(offset + 5, abs=1e-4)
