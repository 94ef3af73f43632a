"""
Count the bytes that a rank holds and sends, and foretell them.

Legend: units of n_1, n_2, ... numbers in the order in which forward calls them, w ranks;
c_u = ceil(n_u / w), C their sum; s numbers of state for each number; b bytes a number.

    between steps     C b of parameters, as many of gradients, s C b of state
    at most gathered  two units that follow each other: one computes, the next is under way
    sent in a step    two all-gathers and a reduce-scatter, each of w c_u numbers, for each unit
"""

from collections.abc import Iterable

import torch

from ...costs import sent_bytes


def _local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def held_bytes(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """
    Count the bytes that stay on this rank from step to step, by kind.

    Counts of steps and other single numbers are left out: they are the same everywhere. What torch
    has sharded counts with this rank's part.

    Args:
        model: A FullySharded model, one that torch has sharded, or one that nobody has.
        optimizer: Its optimizer; it may be one of `sharded_optimizer`.

    Returns:
        dict: Bytes of "parameters", "gradients", "optimizer" and "gathered".

    Lesson: 15_beyond_ddp.
    """
    parameters = list(model.parameters())
    inner = getattr(optimizer, "inner", optimizer)
    stepped = [p for group in inner.param_groups for p in group["params"]]
    owners = {id(p): p for p in [*parameters, *stepped]}.values()  # pieces have gradients, too
    gradients = [p.grad for p in owners if p.grad is not None]
    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.dim()
    ]
    held = {"parameters": parameters, "gradients": gradients, "optimizer": states}
    found = {kind: sum(_local(t).nbytes for t in tensors) for kind, tensors in held.items()}
    units = getattr(model, "units", ())
    found["gradients"] += sum(flat.gradient_bytes for unit in units for flat in unit.flats)
    return {**found, "gathered": getattr(model, "gathered_bytes", 0)}


def foretold_held_bytes(
    unit_sizes: Iterable[int], world_size: int, num_states: int = 2, element_bytes: int = 4
) -> dict[str, int]:
    """
    Foretell what a rank holds of a fully sharded model: between backward and step, and at most
    gathered.

    Args:
        unit_sizes: How many numbers each unit has, in the order of forward.
        world_size: Number of ranks.
        num_states: Numbers that the optimizer keeps for each: 2 for Adam.
        element_bytes: Bytes of a number.

    Returns:
        dict: Bytes of "parameters", "gradients", "optimizer", and "gathered" at most.

    Lesson: 15_beyond_ddp.
    """
    cuts = [-(-size // world_size) for size in unit_sizes]
    part = sum(cuts) * element_bytes
    pairs = zip(cuts, [*cuts[1:], 0], strict=True)
    gathered = max(one + other for one, other in pairs) * world_size * element_bytes
    return {
        "parameters": part,
        "gradients": part,
        "optimizer": num_states * part,
        "gathered": gathered,
    }


def foretold_sent_bytes(
    unit_sizes: Iterable[int],
    world_size: int,
    element_bytes: int = 4,
    reduce_bytes: int | None = None,
    num_gathers: int = 2,
    algorithm: str = "ring",
) -> dict[str, int]:
    """
    Foretell what rank 0 sends in a forward and a backward of a fully sharded model.

    Args:
        unit_sizes: How many numbers each unit has.
        world_size: Number of ranks.
        element_bytes: Bytes of a number that is gathered.
        reduce_bytes: Bytes of a number that is reduced; None: the same.
        num_gathers: 1 if units stay gathered from forward to backward.
        algorithm: How collectives are made, as `costs` names it.

    Returns:
        dict: Bytes of "all_gather" and "reduce_scatter".

    Lesson: 15_beyond_ddp.
    """
    sent = {"all_gather": 0, "reduce_scatter": 0}
    for size in unit_sizes:
        padded = -(-size // world_size) * world_size
        for name, times, num_bytes in (
            ("all_gather", num_gathers, element_bytes),
            ("reduce_scatter", 1, reduce_bytes or element_bytes),
        ):
            sent[name] += times * sent_bytes(name, algorithm, world_size, padded, num_bytes)[0]
    return sent
