"""
A run on digits that a checkpoint can stop and take up again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddp_lessons.checkpoint.example import forget, make_run, train, weights_of
from ddp_lessons.process_group import rank_device

from .digits import digits_model, load_digits

if TYPE_CHECKING:
    from torch import Tensor

    from ddp_lessons.checkpoint import Run

__all__ = ["digits_run", "forget", "train", "weights_of"]


def digits_run(idle_pass: bool = True) -> tuple[Run, tuple[Tensor, Tensor]]:
    """
    Make the run of lesson 08, on handwritten digits.

    Collective: every rank must call it.

    Args:
        idle_pass: As for `make_run`.

    Returns:
        tuple: The Run, and its data: images and labels, on this rank's device.

    Lesson: 08_checkpoint.
    """
    device = rank_device()
    digits = load_digits().to(device)
    run = make_run(digits_model(seed=0).to(device), digits.train_images, idle_pass)
    return run, (digits.train_images, digits.train_labels)
