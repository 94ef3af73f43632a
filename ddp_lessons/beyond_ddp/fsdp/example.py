"""
What the lesson trains: a model of ten layers, of which eight are alike, in five ways.

Shapes: N samples of this rank, images (N, 64), labels (N,).
"""

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ...process_group import rank_device
from ...sharded_optimizer import Zero1Optimizer, Zero2Optimizer
from ...workloads.seeds import seeded
from .counting import held_bytes
from .fully_sharded import FullySharded

WIDTH, NUM_ALIKE = 256, 8
WAYS = ("DDP", "ZeRO-1", "ZeRO-2", "FSDP")


def deep_model(seed: int = 0) -> nn.Sequential:
    """
    Return a classifier of digits of 545,546 numbers in ten layers, the same for the same seed.

    Args:
        seed: Of its first weights.
    """
    widths = [64, *[WIDTH] * (NUM_ALIKE + 1)]
    with seeded(seed):
        layers = [
            layer
            for before, after in pairwise(widths)
            for layer in (nn.Linear(before, after), nn.ReLU())
        ]
        return nn.Sequential(*layers, nn.Linear(WIDTH, 10)).to(rank_device())


def small_model(seed: int = 0) -> nn.Sequential:
    """
    Return a classifier of digits of 2,410 numbers in two layers, the same for the same seed.
    """
    with seeded(seed):
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(rank_device())


def make(way: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """
    Return the lesson's model and its Adam, by the name of a way.

    Collective: every rank must call it.

    Args:
        way: One of WAYS.
        seed: Of its first weights.
    """
    model: nn.Module = deep_model(seed)
    if way == "DDP":
        model = DistributedDataParallel(model)
    elif way == "FSDP":
        model = FullySharded(model)
    kinds = {"ZeRO-1": Zero1Optimizer, "ZeRO-2": Zero2Optimizer}
    if way in kinds:
        return model, kinds[way](model.parameters(), torch.optim.Adam)
    return model, torch.optim.Adam(model.parameters())


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> dict[str, int]:
    """
    Train for a step a batch.

    Collective: every rank must call it.

    Args:
        model: The model.
        optimizer: Its optimizer.
        batches: Pairs of images (N, 64) and labels (N,), those of this rank.

    Returns:
        dict: What this rank held after the last backward and step, as `held_bytes` counts it;
        "gathered" at most.
    """
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        held = held_bytes(model, optimizer)
        optimizer.step()
    after = held_bytes(model, optimizer)
    gathered = getattr(model, "most_gathered_bytes", 0)
    return {**held, "optimizer": after["optimizer"], "gathered": gathered}
