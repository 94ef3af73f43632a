"""
Private names of torch's autograd and of DDP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddp_lessons.private.reaching import uses_private_name

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel


@uses_private_name(
    "torch.autograd.Variable._execution_engine.queue_callback",
    oldest_promised="torch 2.11",
    lost="our DDP, ZeRO and FSDP cannot wait for their communication at the end of a backward pass",
)
def call_after_backward(callback: Callable[[], None]) -> None:
    """
    Call a function once the backward pass that runs now has ended, before `backward` returns.

    torch's own DDP and FSDP use it; hooks of autograd come before the end.
    """
    import torch

    torch.autograd.Variable._execution_engine.queue_callback(callback)


@uses_private_name(
    "torch._C._current_graph_task_id",
    oldest_promised="torch 2.11",
    lost="a trace cannot tell which backward pass a call belongs to",
)
def current_backward() -> Callable[[], int]:
    """
    Return the function that returns the number of the backward pass that runs; -1 if none does.
    """
    import torch

    return torch._C._current_graph_task_id


@uses_private_name(
    "torch.Tensor._backward_hooks",
    oldest_promised="torch 2.11",
    lost="a trace shows gradients as ready after the communication that they started",
)
def put_hook_first(parameter: Tensor, hook_id: int) -> None:
    """
    Move a hook that `register_hook` has added before all others of a parameter.

    Args:
        parameter: The parameter.
        hook_id: The `id` of the hook's handle.
    """
    hooks = parameter._backward_hooks or {}
    mine = hooks.pop(hook_id)
    others = list(hooks.items())
    hooks.clear()
    hooks.update([(hook_id, mine), *others])


_HOOKS_OF_MODULES = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@uses_private_name(
    *(f"torch.nn.Module().{name}" for name in _HOOKS_OF_MODULES),
    *(f"torch.Tensor.{name}" for name in _HOOKS_OF_TENSORS),
    oldest_promised="torch 2.11",
    lost="checks cannot tell that an answer has left hooks on the model that it got",
)
def num_hooks(owner: Module | Tensor) -> int:
    """
    Return how many hooks a module or a parameter has.
    """
    import torch

    kinds = _HOOKS_OF_TENSORS if isinstance(owner, torch.Tensor) else _HOOKS_OF_MODULES
    return sum(len(getattr(owner, kind) or ()) for kind in kinds)


@uses_private_name(
    "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data",
    oldest_promised="torch 2.11",
    lost="lesson 06 cannot show the buckets of DDP and the times of its backward pass",
)
def ddp_logging_data(model: DistributedDataParallel) -> dict[str, Any]:
    """
    Return what a DistributedDataParallel model logs of itself: its buckets, times and settings.
    """
    return dict(model._get_ddp_logging_data())
