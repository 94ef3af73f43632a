"""
Lower the learning rate by a metric that all ranks agree on.

A rate that follows a metric needs a message: each rank knows the metric of its shard only, and
ranks that lower their rates at different steps drift apart.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..errors import BadInput


def global_mean(
    total_local: float | torch.Tensor,
    num_samples_local: int,
    group: dist.ProcessGroup | None = None,
) -> float:
    """
    Return the mean over the samples of all ranks, to the last bit the same on every rank.

    Every rank gathers all totals and adds them with one rounding, so that the result depends
    neither on the order of ranks nor on how the backend adds.

    Collective: every rank must call it, also one without samples.

    Args:
        total_local: The sum of the metric over this rank's samples; a number or 0-dim tensor.
        num_samples_local: How many samples that is; may be 0.
        group: The process group, or None for the default group.

    Returns:
        float: The mean.

    Raises:
        BadInput: No rank has a sample; raised on every rank.

    Source: torch.distributed documentation, `all_gather`. Lesson: 07_accumulation.
    """
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    own = torch.tensor(
        [float(total_local), float(num_samples_local)], dtype=torch.float64, device=device
    )
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, own, group=group)
    totals, counts = zip(*(pair.tolist() for pair in everyone), strict=True)
    if not sum(counts) > 0:
        raise BadInput(
            "No samples: expected at least one over all ranks (got 0, rank "
            f"{dist.get_rank(group)} of {dist.get_world_size(group)}). Evaluate first."
        )
    if not all(map(math.isfinite, totals)):
        return sum(totals)  # infinite or not a number, on every rank alike; fsum may raise
    return math.fsum(totals) / math.fsum(counts)


class PlateauSchedule:
    """
    Lower the learning rate on all ranks together when the metric of all samples stops improving.

    Torch's `ReduceLROnPlateau` decides, fed with the mean over all ranks.

    Args:
        optimizer: The optimizer whose rates to lower.
        group: The process group, or None for the default group.
        options: Those of `ReduceLROnPlateau`: mode, factor, patience, threshold and so on. The same
            on every rank.

    Source: torch documentation, `torch.optim.lr_scheduler.ReduceLROnPlateau`. Lesson:
    07_accumulation.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup | None = None,
        **options: str | float | list[float],
    ) -> None:
        self.group = group
        self._local = ReduceLROnPlateau(optimizer, **options)  # type: ignore[arg-type]  # it checks

    def step(self, total_local: float | torch.Tensor, num_samples_local: int) -> float:
        """
        Average the metric over all ranks, and lower the rate if it has not improved for too long.

        Collective: every rank must call it, equally often.

        Args:
            total_local: The sum of the metric over this rank's samples.
            num_samples_local: How many samples that is; may be 0.

        Returns:
            float: The mean that decided; the same on every rank.

        Raises:
            BadInput: No rank has a sample; raised on every rank.
        """
        metric = global_mean(total_local, num_samples_local, self.group)
        self._local.step(metric)
        return metric

    def state_dict(self) -> dict[str, Any]:
        """
        Return the state of the schedule; the same on every rank.
        """
        return self._local.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """
        Go on from a state; the optimizer's own state holds the rates.
        """
        self._local.load_state_dict(state_dict)
