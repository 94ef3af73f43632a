"""
The critical path of each collective, by formula: its rounds and bytes, for thousands of ranks too.

A formula is exact where the length divides by the number of chunks; `rank_costs` counts any length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddp_lessons.costs.chunks import need_count
from ddp_lessons.costs.schedules import known_algorithms
from ddp_lessons.errors import BadInput

if TYPE_CHECKING:
    from ddp_lessons.costs.link import Link


def _log2_up(w):
    return (w - 1).bit_length()


_CRITICAL = {
    # (rounds, bytes in units of the tensor's) one after the other, for w ranks.
    ("broadcast", "hub"): lambda w: (w - 1, w - 1),
    ("broadcast", "ring"): lambda w: (2 * w - 2, (2 * w - 2) / w),
    ("broadcast", "tree"): lambda w: (_log2_up(w), _log2_up(w)),
    ("scatter", "hub"): lambda w: (w - 1, (w - 1) / w),
    ("gather", "hub"): lambda w: (w - 1, (w - 1) / w),
    ("reduce", "hub"): lambda w: (w - 1, w - 1),
    ("reduce", "ring"): lambda w: (2 * w - 2, (2 * w - 2) / w),
    ("reduce", "tree"): lambda w: (_log2_up(w), _log2_up(w)),
    ("all_reduce", "hub"): lambda w: (2 * (w - 1), 2 * (w - 1)),
    ("all_reduce", "ring"): lambda w: (2 * (w - 1), 2 * (w - 1) / w),
    ("all_reduce", "tree"): lambda w: (2 * _log2_up(w), 2 * _log2_up(w)),
    ("all_reduce", "recursive_doubling"): lambda w: (_doubling_rounds(w), _doubling_rounds(w)),
    ("all_reduce", "halving_doubling"): lambda w: (
        2 * (w.bit_length() - 1) + 2 * _folded(w),
        2 * (1 - 1 / _core(w)) + 2 * _folded(w),
    ),
    ("reduce_scatter", "hub"): lambda w: (2 * (w - 1), (w - 1) * (1 + 1 / w)),
    ("reduce_scatter", "ring"): lambda w: (w - 1, (w - 1) / w),
    ("reduce_scatter", "bruck"): lambda w: (_log2_up(w), (w - 1) / w),
    ("all_gather", "hub"): lambda w: (2 * (w - 1), (w - 1) * (1 + 1 / w)),
    ("all_gather", "ring"): lambda w: (w - 1, (w - 1) / w),
    ("all_gather", "bruck"): lambda w: (_log2_up(w), (w - 1) / w),
    ("all_to_all", "ring"): lambda w: (w - 1, (w - 1) / 2),
    ("all_to_all", "pairwise"): lambda w: (w - 1, (w - 1) / w),
    ("all_to_all", "bruck"): lambda w: (_log2_up(w), _bruck_share(w)),
    ("barrier", "hub"): lambda w: (2 * (w - 1), 0),
    ("barrier", "ring"): lambda w: (2 * w - 1 if w > 1 else 0, 0),
    ("barrier", "tree"): lambda w: (2 * _log2_up(w), 0),
    ("barrier", "dissemination"): lambda w: (_log2_up(w), 0),
}


def _bruck_share(w):
    # A chunk with j ranks to go is sent once for each binary digit 1 of j.
    return sum(j.bit_count() for j in range(w)) / w


def _core(w):
    return 1 << (w.bit_length() - 1)


def _folded(w):
    return int(w != _core(w))


def _doubling_rounds(w):
    return w.bit_length() - 1 + 2 * _folded(w)


def critical_path(collective: str, algorithm: str, world_size: int) -> tuple[int, float]:
    """
    Return what has to happen one after the other, by formula, for thousands of ranks too.

    Args:
        collective: A key of `ALGORITHMS`.
        algorithm: One of its algorithms.
        world_size: Number of ranks.

    Returns:
        tuple of (int, float): Rounds, and bytes as a multiple of the whole tensor's bytes. Exact
        where the length divides by the number of chunks.

    Raises:
        BadInput: The pair has no formula; `rank_costs` counts it from its schedule.

    Source: Thakur, Rabenseifner, Gropp, 2005; Patarasuk, Yuan, 2009. Lesson: 03_ring.
    """
    known_algorithms(collective, algorithm)
    need_count("world_size", world_size, at_least=1)
    if (collective, algorithm) not in _CRITICAL:
        raise BadInput(
            f"No formula for {collective}: expected another algorithm (got {algorithm!r}). "
            "Count it with rank_costs."
        )
    if world_size == 1:
        return 0, 0.0
    rounds, share = _CRITICAL[collective, algorithm](world_size)
    return rounds, float(share)


def collective_s(
    collective: str, algorithm: str, world_size: int, num_bytes: float, link: Link
) -> float:
    """
    Return the seconds of a collective by formula: rounds times latency, bytes over bandwidth.

    Args:
        collective: A key of `ALGORITHMS`.
        algorithm: One of its algorithms.
        world_size: Number of ranks.
        num_bytes: Bytes of the whole tensor.
        link: A Link. Its `add_s_per_byte` is left out; `rank_costs` counts it.

    Raises:
        BadInput: The pair has no formula, or a count is out of range.

    Lesson: 03_ring.
    """
    rounds, share = critical_path(collective, algorithm, world_size)
    return rounds * link.latency_s + share * num_bytes / link.bandwidth_bytes_per_s


def crossover_bytes(
    collective: str, one: str, other: str, world_size: int, link: Link
) -> float | None:
    """
    Return the size at which two algorithms take equally long.

    Args:
        collective: A key of `ALGORITHMS`.
        one: An algorithm.
        other: Another algorithm.
        world_size: Number of ranks.
        link: A Link.

    Returns:
        float: Bytes of the whole tensor; below it the one with fewer rounds is faster. None if
        one of them is at least as fast at every size above 0.

    Raises:
        BadInput: A pair has no formula, or a count is out of range.

    Lesson: 03_ring.
    """
    rounds_one, share_one = critical_path(collective, one, world_size)
    rounds_other, share_other = critical_path(collective, other, world_size)
    if (rounds_one - rounds_other) * (share_other - share_one) <= 0:
        return None
    fewer_s = (rounds_one - rounds_other) * link.latency_s
    return fewer_s * link.bandwidth_bytes_per_s / (share_other - share_one)
