"""
Sets of moments: how long several things took together, and how much of it was at the same time.

Legend: an interval is (start, end) on one clock, in any unit; a set is a list of intervals. What
functions return is in order, and no two of its intervals touch. What has no length is left out.
"""

from collections.abc import Iterable

from ..errors import BadInput


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """
    Return the moments that lie in at least one of the intervals.

    Args:
        intervals: Pairs (start, end), in any order; they may overlap.

    Returns:
        list: Pairs, in order, apart from each other.

    Raises:
        BadInput: An interval ends before it starts.

    Lesson: 11_speed.
    """
    found: list = []
    for start, end in sorted(_checked(intervals)):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif start < end:
            found.append((start, end))
    return found


def intersection(
    some: Iterable[tuple[float, float]], others: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    """
    Return the moments that lie in both sets.

    Lesson: 11_speed.
    """
    some, others, found = union(some), union(others), []
    for start, end in some:
        for other_start, other_end in others:
            both = max(start, other_start), min(end, other_end)
            if both[0] < both[1]:
                found.append(both)
    return found


def difference(
    some: Iterable[tuple[float, float]], others: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    """
    Return the moments that lie in the first set and not in the second.

    Lesson: 11_speed.
    """
    found = union(some)
    for taken_start, taken_end in union(others):
        found = [
            part
            for start, end in found
            for part in ((start, min(end, taken_start)), (max(start, taken_end), end))
            if part[0] < part[1]
        ]
    return found


def length(intervals: Iterable[tuple[float, float]]) -> float:
    """
    Return how long all intervals take together: a moment that lies in several counts once.

    Lesson: 11_speed.
    """
    return sum(end - start for start, end in union(intervals))


def _checked(intervals):
    pairs = [tuple(pair) for pair in intervals]
    for start, end in pairs:
        if not start <= end:
            raise BadInput(
                f"Bad interval: expected an end that is not before its start (got {start!r} to "
                f"{end!r}). Give (start, end), both on one clock."
            )
    return pairs
