"""
Train alone for some steps, then put the weights of all ranks together.

Legend: w ranks, G weights, H steps between two meetings (`every`). Rank r has come from the common
weights x to y_r.

    local SGD    x := mean of y_r
    DiLoCo       x := one step of an outer optimizer by the outer gradient, x - mean of y_r

An outer SGD of rate 1 without momentum is local SGD. Buffers, such as BatchNorm's, stay as each
rank has them.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from ..errors import BadInput
from .lockstep import members
from .weights import set_weights, weights_of


def average_weights(
    model: torch.nn.Module,
    group: dist.ProcessGroup | None = None,
    all_reduce: Callable[..., object] | None = None,
) -> None:
    """
    Give all ranks the mean of their weights, with one all-reduce.

    Collective: every rank must call it.

    Args:
        model: The model, of the same shapes on every rank.
        group: The process group, or None for the default group.
        all_reduce: Function (tensor, group=group) that adds up over ranks, in place; None: torch's.

    Lesson: 14_asynchronous.
    """
    set_weights(model, mean_weights(model, group, all_reduce))


def mean_weights(
    model: torch.nn.Module,
    group: dist.ProcessGroup | None = None,
    all_reduce: Callable[..., object] | None = None,
) -> torch.Tensor:
    """
    Return the mean of all ranks' weights, (G,); the models stay as they are.

    Collective: every rank must call it.
    """
    total = weights_of(model)
    (all_reduce or dist.all_reduce)(total, group=group)
    return total / dist.get_world_size(group)


class LocalSGD:
    """
    Step by each rank's own gradient, and average weights after every few steps.

    Args:
        model: The model, the same on every rank, not wrapped.
        optimizer: Its optimizer. What it remembers, such as momentum, stays each rank's own.
        every: H, steps between two meetings.
        group: The process group, or None for the default group.
        all_reduce: As for `average_weights`.

    Raises:
        BadInput: `every` is below 1.

    Source: S. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
    Lesson: 14_asynchronous.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        every: int,
        group: dist.ProcessGroup | None = None,
        all_reduce: Callable[..., object] | None = None,
    ) -> None:
        if every < 1:
            raise BadInput(
                f"Bad every: expected 1 step or more between two meetings (got {every}). Pass 1 "
                "to meet after each step."
            )
        self.model, self.optimizer, self.group = model, optimizer, group
        self.every, self.num_steps, self.all_reduce = every, 0, all_reduce

    def step(self) -> tuple[int, ...]:
        """
        Make one step alone, and meet the others if it is time.

        Collective: every rank must call it equally often.

        Returns:
            tuple: The ranks that it talked with: none, or all.
        """
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1
        if self.num_steps % self.every:
            return ()
        self.meet()
        return members(self.group)

    def finish(self) -> None:
        """
        Meet once more if steps were made since the last time.

        Collective: every rank must call it.
        """
        if self.num_steps % self.every:
            self.meet()

    def meet(self) -> None:
        """
        Put the weights of all ranks together.

        Collective: every rank must call it.
        """
        average_weights(self.model, self.group, self.all_reduce)


class DiLoCo(LocalSGD):
    """
    As local SGD; what ranks have moved together is the gradient of an outer optimizer.

    The outer optimizer is SGD with Nesterov's momentum: what many meetings agree on, it goes
    further along. It makes the same step on every rank, so that nobody needs to send its state.

    Args:
        model: The model, the same on every rank, not wrapped.
        optimizer: The inner optimizer; AdamW in the paper.
        every: H, steps between two meetings.
        outer_lr: The outer learning rate.
        outer_momentum: The outer momentum.
        group: The process group, or None for the default group.
        all_reduce: As for `average_weights`.

    Source: A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
    Models", 2023, algorithm 1. Lesson: 14_asynchronous.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        every: int,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        group: dist.ProcessGroup | None = None,
        all_reduce: Callable[..., object] | None = None,
    ) -> None:
        super().__init__(model, optimizer, every, group, all_reduce)
        self.common = weights_of(model).requires_grad_()  # x: where the last meeting ended
        self.outer = torch.optim.SGD(
            [self.common], lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0
        )

    def meet(self) -> None:
        """
        Make one outer step, and go on from there.

        Collective: every rank must call it.
        """
        self.common.grad = self.common.detach() - mean_weights(
            self.model, self.group, self.all_reduce
        )
        self.outer.step()
        set_weights(self.model, self.common.detach())
