"""
The naive way: whole parameters have owners, and an owner keeps the state of its own.

Shapes: as in any optimizer: a gradient, and what is kept for it, has its parameter's shape.

    step   each gradient is summed up at its parameter's owner     a reduce a parameter
           the owner makes its step
           it sends its parameter to all others                    a broadcast a parameter

One parameter may be larger than all others together: then its owner has nearly all of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ..replicas import broadcast_from_first
from .arguments import check_class
from .over_inner import OverInner, loss_of
from .partition import partition

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class OwnerOptimizer(OverInner):
    """
    Shard any optimizer by whole parameters. Any class will do, whatever it looks at.

    A step goes by the mean of all ranks' gradients. A parameter without one on some rank counts
    as a gradient of zeros there. What is frozen is left alone.

    Collective: every rank must make it, with parameters of the same shapes; `step` and
    `add_param_group` are collective, too.

    Args:
        params: Parameters, or groups of them, as for any optimizer. They become those of rank 0.
        optimizer_class: A class of optimizer, such as torch.optim.Adam.
        group: The process group; None is the default group.
        settings: What the class takes, such as lr.

    Attributes:
        inner: This rank's optimizer, of that class, over what it owns.

    Source: S. Rajbhandari et al., "ZeRO", SC 2020, section 5.1; torch documentation,
    `ZeroRedundancyOptimizer`. Lesson: 13_sharded_optimizer.
    """

    def __init__(
        self,
        params: ParamsT,
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None = None,
        **settings: object,
    ) -> None:
        check_class(optimizer_class)
        self.owners: dict[torch.Tensor, int] = {}
        super().__init__(params, optimizer_class, group, settings)

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """
        Share out more parameters. What ranks own already counts.
        """
        super().add_param_group(param_group)
        params = self.param_groups[-1]["params"]
        broadcast_from_first(params, self._group)
        loads = [0] * self._world_size
        for parameter, owner in self.owners.items():
            loads[owner] += parameter.numel()
        owners = partition([p.numel() for p in params], self._world_size, loads)
        self.owners |= dict(zip(params, owners, strict=True))
        self._add_to_inner([p for p in params if self.owners[p] == self._rank])

    @torch.no_grad()
    def step(  # type: ignore[override]  # a loss may be a tensor
        self, closure: Callable[[], torch.Tensor | float] | None = None
    ) -> torch.Tensor | float | None:
        """
        Make a step by the mean gradient of all ranks.

        Args:
            closure: A function that computes gradients and returns the loss, or None.

        Returns:
            What the closure returned, or None.
        """
        loss = loss_of(closure)
        trained = [parameter for parameter in self.owners if parameter.requires_grad]
        for parameter in trained:
            self._reduce(parameter)
        self._hand_on_settings()
        self.inner.step()
        for parameter in trained:
            broadcast = parameter.detach().contiguous()  # a transposed one is copied
            dist.broadcast(broadcast, group_src=self.owners[parameter], group=self._group)
            parameter.copy_(broadcast)
        return loss

    def _reduce(self, parameter):
        gradient = parameter.grad
        total = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        if gradient is not None:
            total.copy_(gradient)
        owner = self.owners[parameter]
        dist.reduce(total, group_dst=owner, group=self._group)
        if owner == self._rank:
            parameter.grad = total.div_(self._world_size)
