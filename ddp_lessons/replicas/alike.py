"""
Agree on every rank that replicas can be made, before the first message that could hang.
"""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist

from ..errors import BadInput


def check_alike(facts: Mapping[str, object], group: dist.ProcessGroup | None = None) -> None:
    """
    Raise on every rank unless all of them say the same, so that none is left waiting.

    Collective: every rank must call it.

    Args:
        facts: dict from the name of a fact to something that pickles and compares. The value
            under "fault" is a message, or None: any message is raised on all ranks.
        group: The process group, or None for the default group.

    Raises:
        BadInput: Two ranks differ, or one has a fault. The message names fact and rank.

    Lesson: 05_replicas.
    """
    world_size = dist.get_world_size(group)
    all_facts: list = [None] * world_size
    dist.all_gather_object(all_facts, facts, group=group)
    for rank, theirs in enumerate(all_facts):
        if theirs.get("fault"):
            raise BadInput(theirs["fault"])
        for name in [*all_facts[0], *theirs]:
            expected, value = (f.get(name, "nothing") for f in (all_facts[0], theirs))
            if value != expected:
                raise BadInput(
                    f"Replicas differ: {name} must be {expected} as on rank 0 "
                    f"(got {value}, rank {rank} of {world_size}). Build the same on every rank."
                )


def tensor_facts(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """
    Return what must be the same of tensors on every rank, for `check_alike`.

    Args:
        named_tensors: Iterable of names and tensors.
    """
    return {
        name: f"{tuple(tensor.shape)} {tensor.dtype}"
        + (" trained" if tensor.requires_grad else "")
        + _order_in_a_message(tensor)
        for name, tensor in named_tensors
    }


def _order_in_a_message(tensor):
    # A transposed weight travels as it lies in memory; one with gaps, row by row.
    twin = torch.empty_like(tensor, device="meta")
    return "" if twin.is_contiguous() else f", strides {twin.stride()}"


def fault_of(module: torch.nn.Module) -> str | None:
    """
    Return why a module cannot be a replica, as a message, or None.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return (
            "Nothing to train: at least one parameter must require a gradient "
            "(got none). Use the module as it is."
        )
    for name, part in module.named_modules():
        if getattr(part, "sparse", False):
            return (
                "Sparse gradients: every gradient must be dense "
                f"(got sparse=True in {name or 'the module'}). Make it without sparse=True."
            )
    return None


def of_all_ranks(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """
    Return what each rank holds under one name.

    Collective: every rank must call it, with tensors of the same shape and dtype.

    Args:
        tensor: This rank's, of any shape.
        group: The process group, or None for the default group.

    Returns:
        torch.Tensor: (world_size, *shape), the same on every rank, without a gradient.

    Lesson: 05_replicas, 06_ddp.
    """
    tensor = tensor.detach().contiguous()
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, tensor, group=group)
    return torch.stack(everyone)


def num_different(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> int:
    """
    Return how many different tensors the ranks hold, compared to the last bit: 1 if all are equal.

    Collective: every rank must call it, with tensors of the same shape and dtype.

    Args:
        tensor: This rank's, of any shape.
        group: The process group, or None for the default group.

    Lesson: 05_replicas, 06_ddp.
    """
    return len(of_all_ranks(tensor, group).unique(dim=0))


def replica_distance(module: torch.nn.Module, group: dist.ProcessGroup | None = None) -> float:
    """
    Return how far the parameters of all ranks are from those of rank 0.

    Collective: every rank must call it, with the same kind of module.

    Args:
        module: A module with the same parameters on every rank; their values may differ.
        group: The process group, or None for the default group.

    Returns:
        float: The norm of all differences; 0.0 if replicas are equal to the last bit.

    Lesson: 05_replicas.
    """
    flat = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    weights = of_all_ranks(flat, group)  # (world_size, n)
    return (weights - weights[0]).norm().item()
