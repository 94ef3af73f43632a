"""
Which ranks of a mesh are on a line: pure arithmetic, no message.

Legend: a mesh has axes with a name and a size; w, the product of all sizes, is the number of ranks.
Ranks are counted as in a table that is read row by row: the last axis is that of neighbours. For
{"data": 2, "tensor": 2}:

                   tensor 0   tensor 1
        data 0     rank 0     rank 1
        data 1     rank 2     rank 3

A line along an axis are the ranks that differ in the place on that axis only: [0, 1] and [2, 3]
along "tensor", [0, 2] and [1, 3] along "data".
"""

from collections.abc import Mapping
from math import prod

from ...errors import BadInput


def coordinate(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    """
    Return a rank's place on each axis.

    Args:
        rank: The rank, from 0.
        sizes: Name of each axis -> its size, the axis of neighbours last.

    Returns:
        dict: Name of each axis -> the place on it, from 0.

    Raises:
        BadInput: There is no such rank, or a size is no whole number of at least 1.

    Lesson: 15_beyond_ddp.
    """
    check_sizes(sizes)
    if rank not in range(prod(sizes.values())):
        raise BadInput(
            f"No such rank: one from 0 to {prod(sizes.values()) - 1} expected (got {rank!r}). "
            "Make a larger mesh."
        )
    places = {}
    for name, size in reversed(sizes.items()):
        rank, places[name] = divmod(rank, size)
    return {name: places[name] for name in sizes}


def axis_lines(sizes: dict[str, int], axis: str) -> list[list[int]]:
    """
    Return the lines of ranks along an axis, each in the order of its places.

    Args:
        sizes: Name of each axis -> its size, the axis of neighbours last.
        axis: The name of one of them.

    Returns:
        list: Lists of ranks. Every rank is in one of them.

    Raises:
        BadInput: There is no such axis, or a size is no whole number of at least 1.

    Lesson: 15_beyond_ddp.
    """
    check_sizes(sizes)
    check_axis(sizes, axis)
    lines: dict = {}
    for rank in range(prod(sizes.values())):
        places = coordinate(rank, sizes)
        del places[axis]
        lines.setdefault(tuple(places.values()), []).append(rank)
    return list(lines.values())


def check_axis(sizes: Mapping[str, int], axis: str) -> None:
    """
    Refuse an axis that the mesh does not have.
    """
    if axis not in sizes:
        raise BadInput(
            f"No such axis: one of {', '.join(sizes)} expected (got {axis!r}). Name one of them."
        )


def check_sizes(sizes: Mapping[str, int]) -> None:
    """
    Refuse sizes that make no mesh.
    """
    are_sizes = all(type(size) is int and size >= 1 for size in sizes.values())
    if not sizes or not are_sizes:
        raise BadInput(
            "No mesh: a name and a whole number of at least 1 for each axis expected (got "
            f"{sizes!r}). Correct them."
        )
