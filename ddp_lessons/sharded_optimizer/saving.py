"""
State that does not depend on how many ranks there are: pieces that know their place in a whole.

Shapes: of a parameter of n numbers a rank has a piece, (c,) or less; the whole is (n,).

A DTensor with `Shard(0)` is such a piece. torch's distributed checkpoint writes it with its place,
so that another number of ranks can read other pieces of the same whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist

from .messages import all_gather
from .pieces import cut_like, flat_view, piece_bounds

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from torch.optim.optimizer import StateDict

    from .zero1 import Zero1Optimizer

_OF_ALL = ("step", "mu_product", "eta", "mu")
"""
What torch's optimizers note once for a parameter, in a tensor without dimensions. What belongs to
the numbers of a parameter without dimensions has the same shape.
"""


def sharded_state(
    state: StateDict,
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]],
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """
    Return an inner optimizer's state with pieces as DTensors.

    Collective: every rank must call it.

    Args:
        state: What `state_dict` of the inner optimizer returned.
        pairs: (parameter, piece) in the order in which the state counts them.
        group: The process group; None is the default group.

    Returns:
        dict: The same with DTensors of (n,) where a tensor has the shape of its piece.

    Source: torch documentation, `DTensor.from_local`. Lesson: 13_sharded_optimizer.
    """

    def shard(_, value, parameter, piece):
        if not is_of_piece(value, piece):
            return value
        return piece_in_whole(value, parameter.numel(), group)

    return _changed(state, pairs, shard)


def piece_in_whole(
    piece: torch.Tensor, num_numbers: int, group: dist.ProcessGroup | None = None
) -> DTensor:
    """
    Return this rank's piece of a whole as a DTensor, which shares its memory.

    Collective: every rank must call it, with the piece that `piece_of` would cut.

    Args:
        piece: (c,) or less.
        num_numbers: n, of the whole.
        group: The process group; None is the default group.
    """
    # Half a second of imports that only saving needs.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    group = group or dist.group.WORLD
    mesh = DeviceMesh.from_group(group, piece.device.type)  # type: ignore[arg-type]  # not None
    shape = torch.Size([num_numbers])
    return DTensor.from_local(piece, mesh, [Shard(0)], run_check=False, shape=shape, stride=(1,))


def local_state(state: StateDict, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> StateDict:
    """
    Return what an inner optimizer loads: of everything the piece of this rank.

    Args:
        state: What `sharded_state` returned, or the state of an optimizer that is not sharded.
        pairs: (parameter, piece) in the order in which the state counts them.
    """

    def cut(name, value, parameter, piece):
        if hasattr(value, "to_local"):
            return value.to_local()
        is_whole = isinstance(value, torch.Tensor) and value.shape == parameter.shape
        if is_whole and name not in _OF_ALL:
            whole = torch.empty_like(parameter).copy_(value)  # in the parameter's strides
            return cut_like(whole, parameter, piece).clone()
        return value

    return _changed(state, pairs, cut)


def whole_state(optimizer: Zero1Optimizer) -> StateDict:
    """
    Return the state as an optimizer that is not sharded has it, on every rank.

    Collective: every rank must call it. Each then holds what one that is not sharded would: do it
    to hand a state on, not in a loop.

    Args:
        optimizer: A Zero1Optimizer, or one that comes of it.

    Lesson: 13_sharded_optimizer.
    """
    pairs = list(optimizer.pieces().items())

    def gather(_, value, parameter, piece):
        if not hasattr(value, "to_local"):
            return value
        whole = torch.empty_like(parameter, dtype=value.dtype)
        flat_view(whole).copy_(_gathered(value))
        return whole

    return _changed(optimizer.state_dict(), pairs, gather)


def _gathered(value):
    """
    Return the whole of a DTensor that `piece_in_whole` made.

    As `full_tensor`, which crashes on Gloo with tensors of a GPU: pytorch/pytorch issue 152645.
    """
    group, piece = value.device_mesh.get_group(), value.to_local()
    world_size = dist.get_world_size(group)
    _, length = piece_bounds(value.numel(), world_size, 0)
    row = piece.new_zeros(length)
    row[: len(piece)] = piece
    table = piece.new_empty(world_size, length)
    all_gather(table, row, group)
    return table.view(-1)[: value.numel()]


def is_of_piece(value: object, piece: torch.Tensor) -> TypeGuard[torch.Tensor]:
    """
    Tell whether a value of the state has a number for each of its piece's.
    """
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.shape == piece.shape


def _changed(state, pairs, change):
    names = [name for group in state["param_groups"] for name in group["params"]]
    pair_of = dict(zip(names, pairs, strict=True))
    kept = {
        name: {key: change(key, value, *pair_of[name]) for key, value in values.items()}
        for name, values in state["state"].items()
    }
    return {**state, "state": kept}
