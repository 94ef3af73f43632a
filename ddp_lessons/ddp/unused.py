"""
Which parameters a loss does not reach, by name and rank.
"""

import torch
import torch.distributed as dist

from ..private.dispatcher import tree_leaves


def unused_parameters(module: torch.nn.Module, outputs: object) -> list[str]:
    """
    Return the names of trainable parameters that backward from `outputs` would not reach.

    It walks the autograd graph, as DDP does with `find_unused_parameters`, and changes nothing.

    Args:
        module: The module that made the outputs, wrapped in a replica or not.
        outputs: The loss; or what forward returned: tensors in any lists and dicts.

    Returns:
        list[str]: In the order of `named_parameters`.

    Source: torch documentation, `DistributedDataParallel`, "find_unused_parameters".
    Lesson: 06_ddp.
    """
    waiting = [leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    reached, seen = {id(leaf) for leaf in tree_leaves(outputs)}, set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # the end of a path: it adds to a parameter's gradient
            reached.add(id(node.variable))
        waiting += [following for following, _ in node.next_functions]
    return [
        name
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and id(parameter) not in reached
    ]


def unused_by_rank(
    module: torch.nn.Module, outputs: object, group: dist.ProcessGroup | None = None
) -> dict[str, list[int]]:
    """
    Return who leaves which parameters out.

    Collective: every rank must call it.

    Args:
        module, outputs: As in `unused_parameters`.
        group: The process group, or None for the default group.

    Returns:
        dict[str, list[int]]: For each parameter that some rank does not reach those ranks.

    Lesson: 06_ddp.
    """
    per_rank: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(per_rank, unused_parameters(module, outputs), group=group)
    ranks_of = {}
    for name, _ in module.named_parameters():
        ranks = [rank for rank, names in enumerate(per_rank) if name in names]
        if ranks:
            ranks_of[name] = ranks
    return ranks_of
