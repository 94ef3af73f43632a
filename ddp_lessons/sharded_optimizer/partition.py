"""
Share parameters out: whole ones to owners, so that all ranks have about equally many numbers.

Legend: P parameters of n_1, n_2, ... numbers; w ranks.
"""

from collections.abc import Iterable, Sequence

from ..errors import BadInput


def partition(
    sizes: Sequence[int], world_size: int, loads: Iterable[int] | None = None
) -> list[int]:
    """
    Return which rank owns each parameter: the largest first, each to whoever has least.

    No rank has more than 1 / w of all numbers and one parameter. Nothing is asked of other ranks,
    and all of them find the same.

    Args:
        sizes: How many numbers each parameter has.
        world_size: Number of ranks.
        loads: How many numbers each rank has already; None: none.

    Returns:
        list: For each parameter the rank that owns it.

    Raises:
        BadInput: There is no rank.

    Source: R. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969 (largest first).
    Lesson: 13_sharded_optimizer, task 13.1.
    """
    if world_size < 1:
        raise BadInput(
            f"Nobody can own anything: 1 rank or more expected (got {world_size}). Pass the "
            "group's size."
        )
    loads = [0] * world_size if loads is None else list(loads)
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owner = loads.index(min(loads))
        owners[index] = owner
        loads[owner] += sizes[index]
    return owners
