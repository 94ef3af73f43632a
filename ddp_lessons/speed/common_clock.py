"""
Bring the spans of several ranks to one clock.

Legend: rank r of w; a clock counts seconds from a moment of its own. An offset is what to add to a
rank's clock to read rank 0's. All ranks leave a barrier at nearly the same moment: what their
clocks show then differs by the offset, and by the few microseconds of "nearly".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ..errors import BadInput

if TYPE_CHECKING:
    from .splitting import Span


def clock_offsets_s(leaving_s: Sequence[Sequence[float]]) -> list[float]:
    """
    Return what to add to each rank's clock to read rank 0's.

    The median over several barriers: a rank that was interrupted leaves one of them late.

    Args:
        leaving_s: For each rank the moments, on its own clock, at which it left the same barriers.

    Returns:
        list: Seconds, one number a rank; the first is 0.

    Raises:
        BadInput: There is no rank or no barrier, or ranks have left different numbers of them.

    Source: `ddp_lessons.trace.clock_offsets_ns`, which does it on ranks. Lesson: 11_speed.
    """
    counts = [len(own_s) for own_s in leaving_s]
    if not counts or min(counts) < 1 or len(set(counts)) > 1:
        raise BadInput(
            f"Bad barriers: expected equally many of each rank, at least one (got {counts}). "
            "Note the time after each barrier, on every rank."
        )
    return [
        median(first - own for first, own in zip(leaving_s[0], own_s, strict=True))
        for own_s in leaving_s
    ]


def on_one_clock(
    tracks: Sequence[Iterable[Span]], offsets_s: Sequence[float] | None = None
) -> list[list[Span]]:
    """
    Return tracks whose times are on rank 0's clock, from the first moment of all.

    Args:
        tracks: For each rank its spans (kind, start_s, end_s), perhaps with a label.
        offsets_s: What to add to the clock of each rank; None if they share one.

    Returns:
        list: The same spans; the earliest of them starts at 0.

    Raises:
        BadInput: There are not as many offsets as ranks.

    Lesson: 11_speed.
    """
    offsets_s = [0.0] * len(tracks) if offsets_s is None else offsets_s
    if len(offsets_s) != len(tracks):
        raise BadInput(
            f"Bad offsets: expected one for each of {len(tracks)} ranks (got {len(offsets_s)}). "
            "See clock_offsets_s."
        )
    moved: list = [
        [(kind, start + offset, end + offset, *label) for kind, start, end, *label in track]
        for track, offset in zip(tracks, offsets_s, strict=True)
    ]
    first = min((span[1] for track in moved for span in track), default=0.0)
    return [
        [(kind, start - first, end - first, *label) for kind, start, end, *label in track]
        for track in moved
    ]


def in_ms(tracks: Iterable[Iterable[Span]]) -> list[list[Span]]:
    """
    Return tracks in milliseconds, for a picture: a label becomes a plain name.
    """
    moved: list = [
        [(kind, 1e3 * start, 1e3 * end, *label) for kind, start, end, *label in track]
        for track in tracks
    ]
    return moved
