"""
Accumulation as some guides write it. Kept to be compared with: `Window` says less.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist


def gathered_gradient(
    module: torch.nn.Module,
    micro_batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """
    Return a window's mean gradient, after gathering every rank's gradient of each micro-batch.

    Collective: every rank must call it, with equally many micro-batches.

    Args:
        module: The plain module, without DDP; its `.grad` is left alone.
        micro_batches: Pairs of inputs and targets, at least one, equally many samples in each.
        loss_of: The loss, called with what the module returns and the targets.
        group: The process group, or None for the default group.

    Returns:
        torch.Tensor: All gradients as one vector, the same on every rank.

    Source: torch.distributed documentation, `all_gather`. Lesson: 07_accumulation.
    """
    parameters = list(module.parameters())
    world_size = dist.get_world_size(group)
    total: torch.Tensor | float = 0.0
    for inputs, targets in micro_batches:
        gradients = torch.autograd.grad(loss_of(module(inputs), targets), parameters)
        mine = torch.cat([gradient.flatten() for gradient in gradients])
        everyone = [torch.empty_like(mine) for _ in range(world_size)]
        dist.all_gather(everyone, mine, group=group)
        total = total + sum(everyone) / (world_size * len(micro_batches))
    return total  # type: ignore[return-value]  # a window has a micro-batch
