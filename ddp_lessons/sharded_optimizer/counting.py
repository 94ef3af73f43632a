"""
Count the bytes that a rank holds and receives, and foretell them.

Legend: P parameters of n_1, n_2, ... numbers, N in all; w ranks; c_p = ceil(n_p / w), C their sum;
s numbers of state for each number; b bytes a number. Of rank 0, which has the most:

    stage   parameters   gradients   state   what a step's collectives write
    0       N b          N b         s N b   N b: an all-reduce
    1       N b          N b         s C b   C b + w C b: a reduce-scatter, an all-gather
    2       N b          C b         s C b   C b + w C b: the same
"""

from collections.abc import Collection

import torch

from ..accumulation import state_bytes
from ..errors import BadInput

STAGES = (0, 1, 2)
"""
Nothing is sharded; the state is; the state and the gradients are.
"""


def held_bytes(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """
    Count the bytes that stay on this rank from step to step, by kind.

    Counts of steps and other single numbers are left out: they are the same everywhere.

    Args:
        module: The model, after a backward.
        optimizer: Its optimizer, sharded or not, after a step.

    Returns:
        dict: Bytes of "parameters", "gradients" and "optimizer".

    Lesson: 13_sharded_optimizer.
    """
    held = state_bytes(module, optimizer)
    single = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.dim() == 0
    ]
    held["optimizer"] -= sum(value.element_size() for value in single)
    inner = getattr(optimizer, "inner", None)
    if inner is not None:
        own = {id(parameter) for parameter in module.parameters()}
        pieces = [p for group in inner.param_groups for p in group["params"] if id(p) not in own]
        held["gradients"] += sum(p.grad.nbytes for p in pieces if p.grad is not None)
    return held


def foretold_bytes(
    sizes: Collection[int],
    world_size: int,
    stage: int,
    num_states: int = 2,
    element_bytes: int = 4,
) -> dict[str, int]:
    """
    Foretell what rank 0 holds between backward and step, and what its collectives write in a step.

    Args:
        sizes: How many numbers each parameter has.
        world_size: Number of ranks.
        stage: 0 (nothing is sharded), 1 (the optimizer's state) or 2 (gradients, too).
        num_states: Numbers that the optimizer keeps for each: 2 for Adam, 1 for momentum.
        element_bytes: Bytes of a number.

    Returns:
        dict: Bytes of "parameters", "gradients" and "optimizer", and "received".

    Raises:
        BadInput: There is no such stage, or no rank.

    Source: S. Rajbhandari et al., "ZeRO", SC 2020, figure 1. Lesson: 13_sharded_optimizer, task
    13.4.
    """
    if stage not in STAGES or world_size < 1:
        raise BadInput(
            f"No such run: a stage of 0, 1 or 2 and 1 rank or more expected (got stage {stage}, "
            f"{world_size} ranks). Correct them."
        )
    whole = sum(sizes) * element_bytes
    cut = sum(-(-size // world_size) for size in sizes) * element_bytes
    return {
        "parameters": whole,
        "gradients": cut if stage == 2 else whole,
        "optimizer": num_states * (cut if stage else whole),
        "received": cut + world_size * cut if stage else whole,
    }
