"""
Subgroups: groups within the group, made by all ranks together.

Every rank calls `new_group` for every subgroup, in the same order, also for those it is not in.
torch numbers groups by counting these calls, on each rank by itself, and the ranks of a group meet
under its number. A rank that skipped a call is out of step: its next group has another number than
on the others, who wait for it, or meet it in a group that they did not mean.
"""

from collections.abc import Iterable, Mapping
from typing import cast

import torch.distributed as dist

from ddp_lessons.errors import BadInput


def split_evenly(num_parts: int, backend: str | None = None) -> dist.ProcessGroup:
    """
    Split the ranks into equal parts of neighbours, and return the group of this rank's part.

    Collective: every rank of the default group must call it.

    Args:
        num_parts: Number of parts, a divisor of the world size.
        backend: As in `torch.distributed.new_group`. Default: that of the default group.

    Returns:
        ProcessGroup: The part that this rank is in.

    Raises:
        BadInput: There is no default group, or the ranks cannot be split so.

    Source: torch.distributed documentation, "Groups". Lesson: 01_process_group.
    """
    world_size = _world_size()
    if num_parts < 1 or world_size % num_parts:
        raise BadInput(
            f"The ranks do not split evenly: a number of parts that divides {world_size} (got "
            f"{num_parts}, rank {dist.get_rank()} of {world_size}). Use split_by_name for "
            "unequal parts."
        )
    size = world_size // num_parts
    parts = {f"part-{n}": range(n * size, (n + 1) * size) for n in range(num_parts)}
    return cast(dist.ProcessGroup, split_by_name(parts, backend))  # every rank is in a part


def split_by_name(
    parts: Mapping[str, Iterable[int]], backend: str | None = None
) -> dist.ProcessGroup | None:
    """
    Make a subgroup of each named part, and return the one that this rank is in.

    Collective: every rank of the default group must call it, with the same parts in the same order.

    Args:
        parts: For each name its ranks, such as {"even": [0, 2], "odd": [1, 3]}. A rank may be in
            one part, or in none.
        backend: As in `torch.distributed.new_group`. Default: that of the default group.

    Returns:
        ProcessGroup or None: The part that this rank is in; its `group_desc` is the name.

    Raises:
        BadInput: There is no default group, or a part is empty, or a rank is in two parts or of
            another world.

    Source: torch.distributed documentation, "Groups". Lesson: 01_process_group.
    """
    world_size = _world_size()
    parts = {name: list(ranks) for name, ranks in parts.items()}
    _check_parts(parts, world_size)
    mine = None
    for name, ranks in parts.items():
        group = dist.new_group(ranks, backend=backend, group_desc=name)
        if dist.get_rank() in ranks:
            mine = group
    return mine


def _world_size():
    if not dist.is_initialized():
        raise BadInput(
            "There is no group to split: a default group that this process is in (got none). "
            "Join one first."
        )
    return dist.get_world_size()


def _check_parts(parts, world_size):
    # The same on every rank, so that all refuse or none does.
    me = f"rank {dist.get_rank()} of {world_size}"
    taken = {}
    for name, ranks in parts.items():
        if not ranks:
            raise BadInput(
                f"The part {name!r} is empty: at least one rank (got none, {me}). Leave it out."
            )
        for rank in ranks:
            if not 0 <= rank < world_size:
                raise BadInput(
                    f"The part {name!r} holds a stranger: ranks from 0 to {world_size - 1} (got "
                    f"{rank}, {me}). Correct it."
                )
            if rank in taken:
                raise BadInput(
                    f"Rank {rank} is in two parts: one at most (got {taken[rank]!r} and "
                    f"{name!r}, {me}). Make groups that share ranks with two calls."
                )
            taken[rank] = name
