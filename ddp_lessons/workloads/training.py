"""
The training loop of lessons that are about something else.

Shapes: N samples; images (N, 64), labels (N,).
"""

from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy


def train(
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    num_steps: int = 5,
    lr: float = 0.5,
    after_backward: Callable[[torch.Tensor], object] | None = None,
) -> list[float]:
    """
    Train a classifier by gradient descent, all samples in each step.

    Args:
        model: A module or a wrapper of one: images (N, 64) -> logits (N, 10). Changed in place.
        images: (N, 64).
        labels: (N,).
        num_steps: How many steps to make.
        lr: The learning rate.
        after_backward: A function of the loss, called between `backward` and `step`, or None.

    Returns:
        list of float: The loss of each step, before it, as `after_backward` left it.

    Lesson: 06_ddp.
    """
    optimizer, losses = torch.optim.SGD(model.parameters(), lr), []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        if after_backward is not None:
            after_backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses
