"""
What the lesson runs: a model of which one matrix is 93 % of all numbers, and a few steps of it.

Shapes: N samples of this rank, images (N, 64), labels (N,).
"""

import torch.distributed as dist
from torch.nn.functional import cross_entropy

from .counting import held_bytes
from .messages import all_gather, reduce_scatter
from .pieces import Bucket, piece_of


def train_sharded(model, optimizer, batches):
    """
    Train by an optimizer that averages gradients itself, or a model that does.

    Collective: every rank must call it.

    Args:
        model: The model, DDP or not.
        optimizer: Its optimizer.
        batches: Pairs of images (N, 64) and labels (N,), those of this rank.

    Returns:
        dict: What this rank held after the last backward and step, as `held_bytes` counts it.
    """
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        held = held_bytes(getattr(model, "module", model), optimizer)
        optimizer.step()
    after = held_bytes(getattr(model, "module", model), optimizer)
    return {**held, "optimizer": after["optimizer"]}


def average_gradients(model):
    """
    Replace gradients by their mean over ranks, as a reduce-scatter adds them up.

    From three ranks on, an all-reduce adds in another order: the last bits differ. With this, a
    plain optimizer has the same gradients as a sharded one, to the last bit.

    Collective: every rank must call it.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    bucket = Bucket([(p, piece_of(p, world_size, rank)) for p in trained], world_size)
    table, row = bucket.new_table(), bucket.new_row()
    bucket.put_gradients(table)
    reduce_scatter(row, table)
    all_gather(table, row.div_(world_size))
    gradients = [parameter.grad for parameter in trained]
    alike = Bucket([(g, piece_of(g, world_size, rank)) for g in gradients], world_size)
    alike.take_parameters(table)
