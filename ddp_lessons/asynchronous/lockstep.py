"""
All ranks make every step together. Kept to be compared with: it is DDP without overlap.

Legend: w ranks. `step` takes the place of `optimizer.step()`, after backward, and returns the ranks
that this one talked with. So do all ways of this room.
"""

import torch
import torch.distributed as dist

from .weights import gradient_of, set_gradient


class Lockstep:
    """
    Average gradients over all ranks, then step.

    Args:
        model: The model, the same on every rank, not wrapped.
        optimizer: Its optimizer, of the same kind on every rank.
        group: The process group, or None for the default group.

    Lesson: 14_asynchronous.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.model, self.optimizer, self.group = model, optimizer, group

    def step(self) -> tuple[int, ...]:
        """
        Make one step by the mean gradient, and empty `.grad`.

        Collective: every rank must call it.

        Returns:
            tuple: All ranks of the group.
        """
        flat = gradient_of(self.model)
        dist.all_reduce(flat, group=self.group)
        set_gradient(self.model, flat / dist.get_world_size(self.group))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return members(self.group)

    def finish(self) -> None:
        """
        Do nothing: after each step all ranks have the same weights.
        """


def members(group: dist.ProcessGroup | None) -> tuple[int, ...]:
    """
    Return the ranks of a group, numbered as in the default group.
    """
    return tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
