"""
A process group for each line of a mesh.

Legend: that of `axes`. A rank is in one group for each axis.
"""

from math import prod

import torch.distributed as dist

from ...errors import BadInput
from ...process_group import split_by_name
from .axes import axis_lines, check_axis, check_sizes, coordinate


class Mesh:
    """
    Put the ranks of the default group into rows and columns, and make a group of each line.

    What `torch.distributed.device_mesh.init_device_mesh` does, for who wants to see how.

    Collective: every rank must make it, with the same sizes in the same order.

    Args:
        sizes: Name of each axis -> its size, as Mesh(data=2, tensor=2). The last axis is that of
            neighbours: put there who talks most.

    Attributes:
        sizes: Name of each axis -> its size.
        place: Name of each axis -> this rank's place on it.

    Raises:
        BadInput: There is no default group, or it has not as many ranks as the mesh.

    Source: torch documentation, "DeviceMesh". Lesson: 15_beyond_ddp.
    """

    def __init__(self, **sizes: int) -> None:
        check_sizes(sizes)
        if not dist.is_initialized() or dist.get_world_size() != prod(sizes.values()):
            got = dist.get_world_size() if dist.is_initialized() else "no group"
            raise BadInput(
                f"The mesh does not fit: a default group of {prod(sizes.values())} ranks expected "
                f"(got {got}). Choose other sizes."
            )
        self.sizes = sizes
        self.place = coordinate(dist.get_rank(), sizes)
        self._groups = {axis: _group_along(sizes, axis) for axis in sizes}

    def group(self, axis: str) -> dist.ProcessGroup:
        """
        Return the group of this rank's line along an axis.

        Raises:
            BadInput: There is no such axis.
        """
        check_axis(self.sizes, axis)
        return self._groups[axis]

    def ranks(self, axis: str) -> list[int]:
        """
        Return the ranks of this rank's line along an axis, as the default group numbers them.
        """
        return dist.get_process_group_ranks(self.group(axis))


def _group_along(sizes, axis):
    # Every rank makes all groups of the axis, also those that it is not in: see `split_by_name`.
    lines = axis_lines(sizes, axis)
    return split_by_name({f"{axis} line {number}": line for number, line in enumerate(lines)})
