"""
How large a batch is, and the learning rate that follows from it and from the step.

A rate that is computed from the step needs no message: every rank counts the same steps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..errors import BadInput

if TYPE_CHECKING:
    from torch.optim import Optimizer

RULES = {"linear": 1.0, "square root": 0.5}
"""
The power of the batch's growth by which each rule multiplies the learning rate.
"""


def effective_batch_size(
    batch_size_per_rank: int, world_size: int, num_micro_batches: int = 1
) -> int:
    """
    Return how many samples enter one optimizer step.

    Args:
        batch_size_per_rank: Samples of one micro-batch on one rank.
        world_size: Number of ranks.
        num_micro_batches: Micro-batches in a window.

    Raises:
        BadInput: One of them is below 1.

    Lesson: 07_accumulation.
    """
    if min(batch_size_per_rank, world_size, num_micro_batches) < 1:
        raise BadInput(
            "Bad batch: expected 1 or more of each (got "
            f"{batch_size_per_rank} samples, {world_size} ranks, {num_micro_batches} "
            "micro-batches). Count them again."
        )
    return batch_size_per_rank * world_size * num_micro_batches


def scaled_learning_rate(
    base_rate: float, base_batch_size: int, batch_size: int, rule: str = "linear"
) -> float:
    """
    Return the learning rate for a larger or smaller batch than the one it was tuned for.

    The linear rule is made for SGD, and wants a warm-up; beyond some batch it fails. The square
    root keeps the variance of an SGD step, and is the rule for Adam.

    Args:
        base_rate: The learning rate that is right for `base_batch_size`.
        base_batch_size: Samples in a step when it was tuned.
        batch_size: Samples in a step now: see `effective_batch_size`.
        rule: "linear" or "square root".

    Raises:
        BadInput: The rule is unknown, or a batch size is not above 0.

    Source: P. Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.1 (linear);
    A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014, and
    S. Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022
    (square root). Lesson: 07_accumulation.
    """
    if rule not in RULES:
        raise BadInput(
            f"Unknown rule: expected {' or '.join(RULES)} (got {rule}). Choose linear for SGD."
        )
    if min(base_batch_size, batch_size) <= 0:
        raise BadInput(
            f"Bad batch: expected sizes above 0 (got {base_batch_size} and {batch_size}). Count "
            "the samples of a step over all ranks."
        )
    return base_rate * (batch_size / base_batch_size) ** RULES[rule]


def warmup_cosine(
    step: int,
    num_steps: int,
    peak_rate: float,
    num_warmup_steps: int = 0,
    final_rate: float = 0.0,
) -> float:
    """
    Return the learning rate of one step: a straight climb to the peak, then half a cosine down.

    Args:
        step: Number of the step, from 0.
        num_steps: Steps of the whole run; later ones have the final rate.
        peak_rate: The rate when the climb ends.
        num_warmup_steps: Steps of the climb; the first one has peak_rate / num_warmup_steps.
        final_rate: The rate at the end.

    Returns:
        float: The same on every rank that counts the same steps.

    Raises:
        BadInput: The step is below 0, or the climb is as long as the run.

    Source: P. Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2 (warm-up);
    I. Loshchilov, F. Hutter, "SGDR", 2017, equation 5 (cosine). Lesson: 07_accumulation.
    """
    if step < 0 or not 0 <= num_warmup_steps < num_steps:
        raise BadInput(
            "Bad schedule: expected step 0 or later and a warm-up shorter than the run (got step "
            f"{step}, warm-up {num_warmup_steps}, run {num_steps}). Count optimizer steps."
        )
    if step < num_warmup_steps:
        return peak_rate * (step + 1) / num_warmup_steps
    progress = min(1.0, (step - num_warmup_steps) / (num_steps - num_warmup_steps))
    return final_rate + (peak_rate - final_rate) * (1 + math.cos(math.pi * progress)) / 2


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """
    Set the learning rate of all parameter groups of an optimizer.
    """
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = rate
