"""
Buffers on the ranks of a DDP model, above all the running statistics of BatchNorm.

Shapes: a BatchNorm of C channels keeps running_mean (C,) and running_var (C,).

DDP copies rank 0's buffers to all ranks at the beginning of forward. The running statistics are
then those of rank 0's shards alone; between forwards each rank has one update of its own on top.
"""

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from ..replicas import check_alike


def buffer_spread(
    module: torch.nn.Module, group: dist.ProcessGroup | None = None
) -> dict[str, float]:
    """
    Return how far buffers are from those of rank 0.

    Collective: every rank must call it.

    Args:
        module: A module with the same buffers on every rank.
        group: The process group, or None for the default group.

    Returns:
        dict[str, float]: For each buffer that has elements, the largest distance of any element
            on any rank; 0.0 where all are equal.

    Lesson: 06_ddp.
    """
    spread = {}
    for name, buffer in module.named_buffers():
        if buffer.numel():
            first = buffer.to(torch.float64, copy=True).contiguous()
            dist.broadcast(first, group_src=0, group=group)
            distance = (buffer.double() - first).abs().max()
            dist.all_reduce(distance, op=dist.ReduceOp.MAX, group=group)
            spread[name] = distance.item()
    return spread


@torch.no_grad()
def pool_batch_norm(
    module: torch.nn.Module, num_values: int, group: dist.ProcessGroup | None = None
) -> None:
    """
    Make the running statistics of every BatchNorm those of all shards together.

    For DDP with `broadcast_buffers=False`: each rank keeps statistics of its own shards; pool
    them before evaluating or saving. Normalisation in training still uses the shard's statistics.

    Means are averaged, weighted by `num_values`. The variance is that within ranks and
    that between their means. After one batch (momentum 1) this is what one process on the
    whole batch has. Over many batches the means are averages over time, which vary less than
    those of single batches, so that the part between ranks comes out a little smaller.

    Collective: every rank must call it.

    Args:
        module: A module that has the same BatchNorm layers on every rank. Changed in place.
        num_values: How many values a channel's statistics are taken of in one batch of this rank:
            samples, times pixels for pictures. Two or more.
        group: The process group, or None for the default group.

    Raises:
        BadInput: A rank has fewer than two values, or other layers than rank 0.

    Source: law of total variance; S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015,
    section 3.1, for the unbiased variance. Lesson: 06_ddp.
    """
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    }
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    fault = (
        "Too few values: every channel needs 2 or more to have a variance "
        f"(got {num_values}, rank {rank} of {world_size}). Use a larger shard."
        if num_values < 2
        else None
    )
    check_alike(
        {"fault": fault, **{name: layer.num_features for name, layer in layers.items()}}, group
    )
    for layer in layers.values():
        mean, variance = layer.running_mean.double(), layer.running_var.double()
        within = variance * ((num_values - 1) / num_values)  # unbiased -> of these values alone
        # Squares are taken around rank 0's mean: far from zero, they would cancel.
        centre = mean.clone()
        dist.broadcast(centre, group_src=0, group=group)
        offset = mean - centre
        count = torch.full_like(mean, num_values)
        sums = torch.stack([count, count * offset, count * (within + offset.square())])  # (3, C)
        dist.all_reduce(sums, group=group)
        total, offset, square = sums[0], sums[1] / sums[0], sums[2] / sums[0]
        layer.running_mean.copy_(centre + offset)
        layer.running_var.copy_((square - offset.square()) * total / (total - 1))
