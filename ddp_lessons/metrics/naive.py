"""
Means of ranks' own numbers. Kept to be compared with: what they mean depends on the split.
"""

import torch
import torch.distributed as dist

from .arguments import device_of


def mean_of_means(own: float | torch.Tensor, group: dist.ProcessGroup | None = None) -> float:
    """
    Return the mean of what each rank has found on its own samples.

    It weighs ranks alike, however many samples they have. A rank without samples has nothing to
    give; nan, say, and then all have nan.

    Collective: every rank must call it.

    Args:
        own: This rank's number.
        group: The process group, or None for the default group.

    Returns:
        float: The same on every rank.

    Lesson: 12_metrics.
    """
    total = torch.tensor(float(own), dtype=torch.float64, device=device_of(group))
    dist.all_reduce(total, group=group)
    return total.item() / dist.get_world_size(group)


def weighted_mean_of_means(
    own: float | torch.Tensor, num_samples: int, group: dist.ProcessGroup | None = None
) -> float:
    """
    Return the mean of ranks' own numbers, each weighing as much as its samples.

    Right for what is itself a mean over samples, a loss or an accuracy; not for others, as F1.

    Collective: every rank must call it.

    Args:
        own: This rank's number; it counts for nothing without samples.
        num_samples: How many samples this rank has.
        group: The process group, or None for the default group.

    Returns:
        float: The same on every rank.

    Lesson: 12_metrics.
    """
    total = float(own) * num_samples if num_samples else 0.0
    both = torch.tensor([total, num_samples], dtype=torch.float64, device=device_of(group))
    dist.all_reduce(both, group=group)
    return (both[0] / both[1]).item()
