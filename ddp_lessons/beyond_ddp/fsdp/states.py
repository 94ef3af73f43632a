"""
The whole model from its shards, and back: what one process would save, whatever the ranks. And each
shard with its place in the whole, for a checkpoint that every rank writes its part of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from ...errors import BadInput
from ...sharded_optimizer.saving import is_of_piece, piece_in_whole

if TYPE_CHECKING:
    from .fully_sharded import FullySharded


@torch.no_grad()
def full_state_dict(model: FullySharded) -> dict[str, torch.Tensor]:
    """
    Return what `state_dict` of the module that is not sharded would be, on every rank, on the CPU.

    Unit by unit, so that besides the copies one unit at a time is whole.

    Collective: every rank must call it.

    Args:
        model: A FullySharded model.

    Lesson: 15_beyond_ddp.
    """
    numbers = {}
    for unit in model.units:
        for flat in unit.flats:
            numbers.update(
                {parameter: part.cpu().clone() for parameter, part in flat.whole_numbers().items()}
            )
    parameters = {name: numbers[parameter] for name, parameter in model.names.items()}
    buffers = model.module.state_dict()
    return parameters | {name: value.cpu().clone() for name, value in buffers.items()}


def shard_in_whole(model: FullySharded, name: str, value: object) -> object:
    """
    Return a value of a shard as a DTensor: this rank's part of all numbers of its Flat, unpadded.

    Another number of ranks cuts the same numbers in other places, and so can load it.

    Collective: every rank must call it.

    Args:
        model: A FullySharded model.
        name: The shard's name, such as "shards.0"; any other name's value is returned as it is.
        value: Its numbers, or what an optimizer keeps for them.

    Lesson: 15_beyond_ddp.
    """
    flats = [flat for unit in model.units for flat in unit.flats]
    flat = {f"shards.{place}": flat for place, flat in enumerate(flats)}.get(name)
    if flat is None or not is_of_piece(value, flat.shard):
        return value
    # A view, without the padding: what is loaded into it is in the shard.
    return piece_in_whole(value.detach()[: flat.num_own], flat.num_numbers, model.group)


@torch.no_grad()
def load_full_state_dict(model: FullySharded, state: Mapping[str, torch.Tensor]) -> None:
    """
    Take in what `full_state_dict` has returned, on any number of ranks, or what `state_dict` of
    the module that is not sharded has. Each rank keeps its part.

    Args:
        model: A FullySharded model.
        state: The same on every rank.

    Raises:
        BadInput: A name is missing, too many, or has another shape.

    Lesson: 15_beyond_ddp.
    """
    buffers = model.module.state_dict()
    expected = {**model.names, **buffers}
    for name in sorted(expected.keys() ^ state.keys()):
        told = "no such name" if name in state else "nothing"
        raise BadInput(
            f"Another model: {name} expected in both (got {told}). Load into a model that is "
            "made alike."
        )
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape:
            raise BadInput(
                f"Another model: {name} must be {tuple(tensor.shape)} (got "
                f"{tuple(state[name].shape)}). Load into a model that is made alike."
            )
    numbers = {parameter: state[name] for name, parameter in model.names.items()}
    for unit in model.units:
        for flat in unit.flats:
            flat.take_numbers(numbers)
    for name, buffer in buffers.items():
        buffer.copy_(state[name])
