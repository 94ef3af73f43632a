"""
Small windows and runs, to see what becomes of a gradient, of memory and of the loss.

Shapes: N samples of this rank, images (N, F), labels (N,).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD, Adam

from .rates import set_learning_rate, warmup_cosine
from .window import Window, windows

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def window_gradient(model: nn.Module, micro_batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """
    Return the gradient of one window, each micro-batch weighed by its samples; `.grad` keeps it.

    Collective: every rank must call it, if the model averages gradients.

    Args:
        model: The model, DDP or not; all its parameters take part.
        micro_batches: Pairs of images and labels.

    Returns:
        torch.Tensor: All gradients as one vector.

    Lesson: 07_accumulation.
    """
    micro_batches = list(micro_batches)
    model.zero_grad()
    with Window(model, micro_batches, [len(y) for _, y in micro_batches]) as window:
        for x, y in window:
            window.backward(cross_entropy(model(x), y))
    return parameters_to_vector(p.grad for p in model.parameters())  # type: ignore[misc]


def deep_network(device: torch.device | str) -> tuple[nn.Sequential, Adam]:
    """
    Return eight layers of 64 features, so that activations fill more than weights; and its Adam.

    Lesson: 07_accumulation.
    """
    layers = [module for _ in range(8) for module in (nn.Linear(64, 64), nn.GELU())]
    network = nn.Sequential(*layers).to(device)
    return network, Adam(network.parameters())


def train_windows(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    num_micro_batches: int,
    peak_rate: float,
    num_epochs: int = 4,
) -> tuple[float, int]:
    """
    Train in windows of micro-batches of 8 samples, at a rate that follows from the step.

    The rate climbs to its peak for 2 steps, and falls along half a cosine.

    Collective: every rank must call it, if the model averages gradients.

    Args:
        model: The model, DDP or not.
        images: (N, F) float32, those of this rank; ranks have equally many.
        labels: (N,) int64.
        num_micro_batches: Micro-batches in a window, k.
        peak_rate: The highest learning rate.
        num_epochs: How often to go through all samples.

    Returns:
        tuple: The mean loss over this rank's samples at the end, and the number of steps.

    Lesson: 07_accumulation.
    """
    optimizer = SGD(model.parameters())
    batches = zip(images.split(8), labels.split(8), strict=True)
    steps = num_epochs * list(windows(batches, num_micro_batches))
    for step, part in enumerate(steps):
        set_learning_rate(optimizer, warmup_cosine(step, len(steps), peak_rate, 2))
        with Window(model, part, [len(y) for _, y in part]) as window:
            for x, y in window:
                window.backward(cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    return cross_entropy(getattr(model, "module", model)(images), labels).item(), len(steps)
