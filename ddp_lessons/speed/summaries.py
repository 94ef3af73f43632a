"""
From raw times of steps to numbers that one may report.

Legend: w ranks; times are seconds of steps, in order. The first steps are not steps: memory is
taken, buckets are put in order, kernels are chosen. They are left out, and it is said how many.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ..errors import BadInput


@dataclass(frozen=True)
class Summary:
    """
    Hold what is told of the times of some steps.

    Args:
        median_s: Half of the steps took at most that long.
        fastest_s: Seconds of the fastest step.
        slowest_s: Seconds of the slowest step.
        num_steps: How many steps that are.
        num_warm_up: How many before them were left out.
    """

    median_s: float
    fastest_s: float
    slowest_s: float
    num_steps: int
    num_warm_up: int = 0

    @property
    def spread(self) -> float:
        """
        How much longer the slowest step took than the fastest, as a share of the median.
        """
        return (self.slowest_s - self.fastest_s) / self.median_s


def summarise(times_s: Iterable[float], num_warm_up: int = 1) -> Summary:
    """
    Return the median and the spread of steps, without the first ones.

    Args:
        times_s: Seconds of each step, in order.
        num_warm_up: How many of the first are no steps yet.

    Raises:
        BadInput: No step is left, or a time is not above 0.

    Lesson: 11_speed.
    """
    times_s = list(times_s)
    kept_s = times_s[num_warm_up:]
    if num_warm_up < 0 or not kept_s or not min(times_s) > 0:
        raise BadInput(
            f"Nothing to report: expected times above 0 beyond {num_warm_up} of warm-up (got "
            f"{len(times_s)} times). Measure more steps."
        )
    return Summary(median(kept_s), min(kept_s), max(kept_s), len(kept_s), num_warm_up)


def of_slowest(times_s: Sequence[Sequence[float]]) -> list[float]:
    """
    Return the seconds of each step on the rank that took longest for it: the step of them all.

    Args:
        times_s: For each rank the seconds of its steps.

    Raises:
        BadInput: There is no rank, or ranks differ in how many steps they made.

    Lesson: 11_speed.
    """
    counts = [len(own_s) for own_s in times_s]
    if len(set(counts)) != 1:
        raise BadInput(
            f"Bad times: expected equally many steps of each rank (got {counts}). Time the same "
            "steps on all of them."
        )
    return [max(of_step) for of_step in zip(*times_s, strict=True)]
