"""
Private names of torch's dispatcher, by which a trace sees every call, and of its tree of values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddp_lessons.private.reaching import uses_private_name

if TYPE_CHECKING:
    from types import ModuleType

    from torch._C import FunctionSchema, Future
    from torch._ops import OpOverload
    from torch.distributed import ProcessGroup
    from torch.utils._python_dispatch import TorchDispatchMode


@uses_private_name(
    "torch._C._dispatch_keyset_full_after",
    "torch._ops.OpOverload._handle",
    oldest_promised="torch 2.11",
    lost="a trace cannot see collectives, so pictures and most checks do not work",
)
def redispatch_below_backend_select(overload: OpOverload) -> Callable[..., Any]:
    """
    Return a function that passes a call on, past a kernel under the key BackendSelect.

    Args:
        overload: An overload of an operation, such as `torch.ops.c10d.allreduce_.default`.

    Returns:
        Callable: Takes the key set that the kernel got, and the operation's arguments.
    """
    import torch

    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    redispatch = overload._handle.redispatch_boxed
    return lambda keyset, *args: redispatch(keyset & below, *args)


@uses_private_name(
    "torch.library.Library._destroy",
    oldest_promised="torch 2.11",
    lost="kernels of a trace stay in torch's dispatcher when the trace is closed",
)
def destroy_library(library: Any) -> None:
    """
    Take the kernels of a `torch.library.Library` out of the dispatcher.
    """
    library._destroy()


@uses_private_name(
    "torch._C.Future",
    oldest_promised="torch 2.11",
    lost="a trace cannot see waits for a future",
)
def future_class() -> type[Future[Any]]:
    """
    Return the class of all futures. `torch.futures.Future` is a subclass of it, and C++ makes some
    that are of the base class alone.
    """
    import torch

    return torch._C.Future


@uses_private_name(
    "torch._C._collect_all",
    oldest_promised="torch 2.11",
    lost="a trace cannot see waits for `torch.futures.collect_all`",
)
def collect_all_owner() -> tuple[ModuleType, str]:
    """
    Return the object and the name under which `torch.futures.collect_all` finds its C++ half.
    """
    import torch

    _ = torch._C._collect_all  # raises if it is gone
    return torch._C, "_collect_all"


@uses_private_name(
    "torch.distributed.ProcessGroup._end_coalescing",
    oldest_promised="torch 2.11",
    lost="a trace cannot see messages that `batch_isend_irecv` sends by NCCL",
)
def end_coalescing_owner() -> tuple[type[ProcessGroup], str]:
    """
    Return the class and the name of the method that ends a batch of messages.
    """
    from torch.distributed import ProcessGroup

    _ = ProcessGroup._end_coalescing  # raises if it is gone
    return ProcessGroup, "_end_coalescing"


@uses_private_name(
    "torch.ops._c10d_functional.wait_tensor",
    oldest_promised="torch 2.11",
    lost="a trace cannot see waits for functional collectives",
)
def wait_tensor_operation() -> tuple[str, str, OpOverload]:
    """
    Return the namespace, the name and the overload of the operation that waits for a tensor.
    """
    import torch

    return "_c10d_functional", "wait_tensor", torch.ops._c10d_functional.wait_tensor.default


@uses_private_name(
    "torch.utils._python_dispatch.TorchDispatchMode",
    oldest_promised="torch 2.11",
    lost="checks cannot see an answer that uses a tensor before its message has arrived",
)
def dispatch_mode() -> type[TorchDispatchMode]:
    """
    Return the class whose instances see every operation inside of a `with` block.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    return TorchDispatchMode


@uses_private_name(
    "torch._ops.OpOverload()._schema",
    oldest_promised="torch 2.11",
    lost="checks cannot tell which arguments an operation writes to",
)
def schema_of(overload: OpOverload) -> FunctionSchema:
    """
    Return the schema of an overload: the operation's name, its arguments, and which are written.
    """
    return overload._schema


@uses_private_name(
    "torch.utils._pytree.tree_leaves",
    oldest_promised="torch 2.11",
    lost="our DDP and FSDP cannot find the tensors in what a model takes and returns",
)
def tree_leaves(value: object) -> list[Any]:
    """
    Return the values in nested lists, tuples and dictionaries, from left to right.
    """
    import torch.utils._pytree

    return torch.utils._pytree.tree_leaves(value)


@uses_private_name(
    "torch.utils._pytree.tree_map",
    oldest_promised="torch 2.11",
    lost="our FSDP cannot change the dtype of what a model takes and returns",
)
def tree_map(function: Callable[[Any], object], value: object) -> Any:
    """
    Return nested lists, tuples and dictionaries with a function's result for each value in them.
    """
    import torch.utils._pytree

    return torch.utils._pytree.tree_map(function, value)
