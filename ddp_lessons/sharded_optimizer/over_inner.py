"""
An optimizer over another one: outside what a script sees, inside a class of the learner's choice
over what this rank keeps.

A schedule, or a learner, writes settings into the outer groups. The inner ones get them before each
step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class OverInner(torch.optim.Optimizer):
    """
    Hold the inner optimizer, and keep the settings of both alike.

    Who inherits adds to `inner`, in `add_param_group`, what this rank keeps of the last group.

    Args:
        params: Parameters, or groups of them, as for any optimizer.
        optimizer_class: The class of the inner optimizer.
        group: The process group; None is the default group.
        settings: What the class takes, as a dict.

    Attributes:
        inner: This rank's optimizer, of that class.
    """

    def __init__(
        self,
        params: ParamsT,
        optimizer_class: type[torch.optim.Optimizer],
        group: dist.ProcessGroup | None,
        settings: dict[str, object],
    ) -> None:
        # The first group sets it.
        self.inner: torch.optim.Optimizer = None  # type: ignore[assignment]
        self._class, self._settings, self._group = optimizer_class, settings, group
        self._rank, self._world_size = dist.get_rank(group), dist.get_world_size(group)
        super().__init__(params, {})

    def _add_to_inner(self, own):
        # `own` is what this rank keeps of the last group's parameters.
        outer = self.param_groups[-1]
        if self.inner is None:
            self.inner = self._class([{**outer, "params": own}], **self._settings)
            self.defaults, self.state = self.inner.defaults, self.inner.state
        else:
            self.inner.add_param_group({**outer, "params": own})
        for name, value in self.inner.param_groups[-1].items():
            outer.setdefault(name, value)

    def _hand_on_settings(self):
        for outer, own in zip(self.param_groups, self.inner.param_groups, strict=True):
            own.update({name: value for name, value in outer.items() if name != "params"})


def loss_of(closure: Callable[[], torch.Tensor | float] | None) -> torch.Tensor | float | None:
    """
    Return what a step's closure returns, called with gradients on. None: there is no closure.
    """
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
