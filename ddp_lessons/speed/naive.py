"""
What one does at first, to be compared with: add up durations, and average all steps.

Legend: rank r; a span is (kind, start_s, end_s), perhaps with a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .splitting import Span


def summed_s(spans: Iterable[Span]) -> dict[str, float]:
    """
    Add up the durations of one rank's spans by kind, as the table of a profiler does.

    What runs at the same time is counted twice, and an all-reduce that waits for a late rank looks
    like one that is slow.

    Args:
        spans: Those of one rank.

    Returns:
        dict: Kind -> seconds.

    Lesson: 11_speed, beside `split_steps`.
    """
    sums: dict[str, float] = {}
    for kind, start_s, end_s, *_ in spans:
        sums[kind] = sums.get(kind, 0.0) + end_s - start_s
    return sums


def mean_speedup(before_s: Sequence[float], after_s: Sequence[float]) -> float:
    """
    Divide the means of all steps, the first ones included.

    Args:
        before_s: Seconds of each step on one rank.
        after_s: Seconds of each step on several.

    Lesson: 11_speed, beside `report_speedup`.
    """
    return (sum(before_s) / len(before_s)) / (sum(after_s) / len(after_s))
