"""
Refuse wrong arguments before the first message, so that no rank waits for one that raised.

Legend: w ranks. `peers` are the Peers of the call; `name` is what the caller's tensors are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .messages import Peers


def check_tensors(
    tensors: Iterable[torch.Tensor], name: str, peers: Peers, written: bool = False
) -> None:
    """
    Refuse what cannot be sent, or cannot be written.

    Args:
        tensors: List of what should be dense tensors.
        name: The caller's name for them.
        peers: The Peers.
        written: They will hold the result, so no two numbers of one may share memory.

    Raises:
        BadInput: One is no dense tensor, or is an expanded one that will be written.
    """
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise peers.fault(
                f"Cannot be sent: {name} must be made of dense tensors",
                getattr(tensor, "layout", type(tensor).__name__),
                "Make it dense, or one tensor of many, first",
            )
        if written and _shares_memory(tensor):
            raise peers.fault(
                f"Cannot be written: the numbers of {name} must not share memory",
                f"strides {tensor.stride()}",
                "Call .clone() on it first",
            )


def check_list(
    tensors: list[torch.Tensor] | tuple[torch.Tensor, ...],
    name: str,
    peers: Peers,
    like: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    written: bool = False,
) -> None:
    """
    Refuse a list that does not hold one fitting tensor a rank.

    Args:
        tensors: The value to check, which should be a list of w tensors.
        name: The caller's name for it.
        peers: The Peers.
        like: Tensor whose shape and dtype all must have; None if they may differ.
        dtype: The dtype that all must have; None is that of `like`, if any.
        written: As in `check_tensors`.

    Raises:
        BadInput: It is no list, has another length, holds a tensor that does not fit, or one
            tensor twice where all will be written.
    """
    is_list = isinstance(tensors, (list, tuple))
    if not is_list or len(tensors) != peers.world_size:
        raise peers.fault(
            f"Wrong list: {name} must hold one tensor a rank, {peers.world_size} in all",
            len(tensors) if is_list else type(tensors).__name__,
            "Make the list as long as the group is large",
        )
    check_tensors(tensors, name, peers, written)
    if written:
        _check_apart(tensors, name, peers)
    if like is not None:
        dtype = like.dtype
    for tensor in tensors:
        if like is not None and tensor.shape != like.shape:
            raise peers.fault(
                f"Wrong shape: tensors of {name} must have shape {tuple(like.shape)}",
                tuple(tensor.shape),
                "Give all tensors of this call one shape",
            )
        if dtype is not None and tensor.dtype != dtype:
            raise peers.fault(
                f"Wrong dtype: tensors of {name} must be {dtype}",
                tensor.dtype,
                "Give all tensors of this call one dtype",
            )


def check_root_list(
    tensors: list[torch.Tensor] | tuple[torch.Tensor, ...] | None,
    name: str,
    root: int,
    peers: Peers,
    like: torch.Tensor,
    written: bool = False,
) -> None:
    """
    Refuse a list that does not fit on the root, or that is there on another rank.

    Args:
        tensors: A list of w tensors on the root, None elsewhere.
        name: The caller's name for it.
        root: Rank in the group that must give the list.
        peers: The Peers.
        like: Tensor whose shape and dtype all must have.
        written: As in `check_tensors`.

    Raises:
        BadInput: The list does not fit on the root, or another rank gives one.
    """
    if peers.rank == root:
        # It refuses None as well.
        check_list(tensors, name, peers, like=like, written=written)  # type: ignore[arg-type]
    elif tensors:
        raise peers.fault(
            f"List on the wrong rank: {name} belongs to rank {root} of the group alone",
            f"{len(tensors)} tensors",
            "Give None on the other ranks",
        )


def _check_apart(tensors, name, peers):
    """
    Refuse a list such as `[torch.empty(3)] * w`: what comes last would be all that is left.
    """
    first_with: dict = {}
    for place, tensor in enumerate(tensors):
        other = first_with.setdefault(tensor.data_ptr(), place) if tensor.numel() else place
        if other != place:
            raise peers.fault(
                f"Cannot be written: each tensor of {name} needs memory of its own",
                f"the same for {other} and {place}",
                "Make a new tensor for each rank",
            )


def _shares_memory(tensor):
    """
    Tell whether a tensor was expanded: a stride of 0 makes several indices one number.
    """
    if tensor.is_contiguous():
        return False
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    return any(stride == 0 and size > 1 for stride, size in sizes)
