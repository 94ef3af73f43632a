"""
Stop training early, on all ranks in the same epoch.

A rank that leaves the loop alone lets the others wait in their next collective, for ever. So the
decision is made from numbers that all ranks share.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

import torch
import torch.distributed as dist

from .arguments import device_of, need_samples

if TYPE_CHECKING:

    class State(TypedDict):
        """
        What a resumed run needs of an EarlyStopping.
        """

        best: float
        num_bad: int


class EarlyStopping:
    """
    Decide on all ranks together when the loss of all samples has stopped falling.

    A loss counts as better if it is below the best so far by more than `min_delta`. One that is not
    a number is not better.

    Args:
        patience: So many calls in a row without a better loss, and training stops.
        min_delta: By how much a loss must be below the best.
        group: The process group, or None for the default group.

    Attributes:
        best: The lowest loss that counted as better; infinite at first.
        num_bad: Calls since then.

    Lesson: 12_metrics.
    """

    def __init__(
        self, patience: int, min_delta: float = 0.0, group: dist.ProcessGroup | None = None
    ) -> None:
        self.patience, self.min_delta, self.group = patience, min_delta, group
        self.best, self.num_bad = math.inf, 0

    def step(
        self,
        total_local: float | torch.Tensor,
        num_samples_local: int,
        wants_to_stop: bool = False,
    ) -> bool:
        """
        Say whether to stop, with one all-reduce of three numbers.

        Collective: every rank must call it, equally often, also one without samples.

        Args:
            total_local: The sum of the losses of this rank's samples.
            num_samples_local: How many they are.
            wants_to_stop: Whether this rank asks all to stop, as when its time is up.

        Returns:
            bool: The same on every rank.

        Raises:
            BadInput: No rank has a sample.
        """
        own = [float(total_local), num_samples_local, float(wants_to_stop)]
        sums = torch.tensor(own, dtype=torch.float64, device=device_of(self.group))
        dist.all_reduce(sums, group=self.group)
        total, count, num_wishes = sums.tolist()
        need_samples(count, self.group)
        if total / count < self.best - self.min_delta:
            self.best, self.num_bad = total / count, 0
        else:
            self.num_bad += 1
        return self.num_bad >= self.patience or num_wishes > 0

    def state_dict(self) -> State:
        """
        Return what a resumed run needs; the same on every rank.
        """
        return {"best": self.best, "num_bad": self.num_bad}

    def load_state_dict(self, state_dict: State) -> None:
        """
        Go on from a state.
        """
        self.best, self.num_bad = state_dict["best"], state_dict["num_bad"]
