"""
Which part of a weight a rank has.

Shapes: a tensor of n numbers along the dimension that is cut, w ranks: a part has n / w of them.
"""

import torch.distributed as dist
from torch import Tensor, nn

from ...errors import BadInput


def place_in(group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """
    Return this rank's number in a group, and how many ranks it has.
    """
    return dist.get_rank(group), dist.get_world_size(group)


def share_of(
    num: int, what: str, group: dist.ProcessGroup | None = None, num_stacked: int = 1
) -> int:
    """
    Return how many of `num` a rank gets; refuse a number that does not divide.

    torch's `parallelize_module` would cut it unevenly, as `torch.chunk` does. Then one rank has
    more than the others, who wait for it, and the last one may have nothing.

    Args:
        num: How many there are.
        what: What they are, such as "features".
        group: The process group, or None for the default group.
        num_stacked: How many equal matrices lie in it, each of which is cut by itself.

    Raises:
        BadInput: They cannot be shared out evenly. The same on every rank, before any message.
    """
    rank, world_size = place_in(group)
    if num % (world_size * num_stacked):
        raise BadInput(
            f"The {what} do not divide: a multiple of {world_size * num_stacked} expected (got "
            f"{num}, rank {rank} of {world_size}). Pad the layer, or take fewer ranks."
        )
    return num // world_size


def part_of(
    tensor: Tensor, dim: int, group: dist.ProcessGroup | None = None, num_stacked: int = 1
) -> Tensor:
    """
    Return this rank's part of a tensor: a copy, so that the whole can be freed.

    Args:
        tensor: The whole, the same on every rank.
        dim: The dimension that is cut.
        group: The process group, or None for the default group.
        num_stacked: How many equal matrices lie one after the other along `dim`, such as 3 for
            queries, keys and values. Each is cut by itself.

    Raises:
        BadInput: It does not divide.

    Lesson: 15_beyond_ddp.
    """
    share_of(tensor.shape[dim], "rows or columns", group, num_stacked)
    rank, world_size = place_in(group)
    stacked = tensor.detach().unflatten(dim, (num_stacked, world_size, -1))
    place = dim % tensor.dim() + 1
    return stacked.select(place, rank).flatten(place - 1, place).clone()


def cut_parameter(
    whole: Tensor | None,
    dim: int,
    group: dist.ProcessGroup | None = None,
    num_stacked: int = 1,
) -> nn.Parameter | None:
    """
    Return this rank's part of a parameter as one that is frozen if the whole is; None of None.
    """
    if whole is None:
        return None
    part = part_of(whole, dim, group, num_stacked)
    return nn.Parameter(part, requires_grad=whole.requires_grad)
