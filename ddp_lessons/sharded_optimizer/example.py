"""
What the lesson runs: a model of which one matrix is 93 % of all numbers, and a few steps of it.

Shapes: N samples of this rank, images (N, 64), labels (N,).
"""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from .counting import held_bytes


def train_sharded(
    model: nn.Module, optimizer: Optimizer, batches: Iterable[tuple[Tensor, Tensor]]
) -> dict[str, int]:
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
