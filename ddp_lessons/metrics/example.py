"""
What the lesson evaluates: digits, by a model that is half trained.

Shapes: N samples, images (N, 64), labels (N,), logits (N, 10).
"""

from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from .confusion import Confusion, accuracy_of, macro_f1
from .sums import Mean


@torch.no_grad()
def evaluate(
    model: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, labels: torch.Tensor
) -> tuple[Mean, Confusion]:
    """
    Count what a classifier makes of samples of this rank, without a message.

    Args:
        model: (N, 64) -> (N, 10).
        images: (N, 64).
        labels: (N,); N may be 0.

    Returns:
        tuple: A Mean of the losses, and a Confusion.

    Lesson: 12_metrics.
    """
    loss, confusion = Mean(), Confusion(num_classes=10)
    logits = model(images)
    loss.add(cross_entropy(logits, labels, reduction="none"))
    confusion.add(logits.argmax(dim=1), labels)
    return loss, confusion


def numbers_of_rank(loss: Mean, confusion: Confusion) -> list[float]:
    """
    Return loss, accuracy and F1 of the samples that one rank has, at least one.

    Lesson: 12_metrics.
    """
    counts = confusion.counts
    return [loss.total / loss.count, accuracy_of(counts), macro_f1(counts)]


def numbers_of_all(loss: Mean, confusion: Confusion) -> list[float]:
    """
    Return loss, accuracy and F1 of the samples of all ranks.

    Collective: every rank must call it.

    Lesson: 12_metrics.
    """
    counts = confusion.compute()
    return [loss.compute(), accuracy_of(counts), macro_f1(counts)]


def first_gradient(
    model: torch.nn.Sequential, images: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """
    Return the gradient of the first layer's weight, of the sum of losses, in float64.

    Collective: in training every rank must call it, if a layer of the model talks.

    Args:
        model: A model whose first module is a linear layer; it becomes float64.
        images: (N, 64).
        labels: (N,).

    Lesson: 12_metrics.
    """
    logits = model.double()(images.double())
    cross_entropy(logits, labels, reduction="sum").backward()
    return model[0].weight.grad  # type: ignore[return-value]  # backward has filled it
