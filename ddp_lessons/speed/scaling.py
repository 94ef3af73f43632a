"""
What several ranks may gain, and what they gained.

Legend: w ranks; s is the share of a step that does not divide.

    strong scaling   the same batch, divided among w ranks:       ideal is 1 / w of the time
    weak scaling     the same batch for each rank, so w times:    ideal is the same time

Amdahl asks how much faster the same work gets: at most 1 / s, however many ranks there are.
Gustafson asks how long one rank would take for what w ranks do in a step: there w has no end.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..costs import amdahl_speedup
from ..errors import BadInput
from .summaries import Summary, summarise


def speedup(before_samples_per_s: float, after_samples_per_s: float) -> float:
    """
    Return how many times as many samples a second several ranks see as one.

    Samples a second compare batches of any size. Seconds a step compare equal ones only.

    Args:
        before_samples_per_s: Of one rank.
        after_samples_per_s: Of all ranks together.

    Raises:
        BadInput: A number is not above 0.

    Lesson: 11_speed.
    """
    if not min(before_samples_per_s, after_samples_per_s) > 0:
        raise BadInput(
            "Bad throughput: expected samples a second above 0 (got "
            f"{before_samples_per_s:g} and {after_samples_per_s:g}). Divide samples by seconds."
        )
    return after_samples_per_s / before_samples_per_s


def efficiency(gain: float, world_size: int) -> float:
    """
    Return which share of w ranks' work is of use: the speed-up over w.

    Lesson: 11_speed.
    """
    return gain / world_size


def highest_speedup(serial_share: float) -> float:
    """
    Return the speed-up that no number of ranks exceeds, for a fixed amount of work.

    Args:
        serial_share: Share of the time on one rank that does not divide, above 0.

    Source: Amdahl, 1967; see `costs.amdahl_speedup`. Lesson: 11_speed.
    """
    if not 0 < serial_share <= 1:
        raise BadInput(
            f"Bad serial_share: expected a number above 0 and up to 1 (got {serial_share!r}). Of "
            "nothing serial, ranks may go on for ever."
        )
    return 1 / serial_share


def gustafson_speedup(serial_share: float, world_size: int) -> float:
    """
    Return how many times faster w ranks are than one, with a batch that grows with them.

    One rank would take that much longer for the whole of the larger batch.

    Args:
        serial_share: Share of the time on w ranks that does not divide, from 0 to 1.
        world_size: Number of ranks, w.

    Source: J. Gustafson, "Reevaluating Amdahl's Law", 1988. Lesson: 11_speed.
    """
    amdahl_speedup(serial_share, world_size)  # the same arguments, refused in the same words
    return serial_share + (1 - serial_share) * world_size


def serial_share_of(gain: float, world_size: int) -> float:
    """
    Return the share that cannot have divided, from a speed-up that was measured.

    If it grows with w, it is not only serial work: communication grows, too.

    Args:
        gain: The speed-up on w ranks.
        world_size: Number of ranks, w, at least 2.

    Source: A. Karp, H. Flatt, "Measuring Parallel Processor Performance", 1990. Lesson: 11_speed.
    """
    if world_size < 2 or not gain > 0:
        raise BadInput(
            f"Nothing was divided: expected 2 ranks or more and a speed-up above 0 (got "
            f"{world_size!r} and {gain!r}). Measure on more ranks."
        )
    return (1 / gain - 1 / world_size) / (1 - 1 / world_size)


@dataclass(frozen=True)
class Report:
    """
    Hold a speed-up and what one must know to believe it.

    Args:
        world_size: Number of ranks.
        speedup: Samples a second on all ranks over those on one, by medians.
        efficiency: The speed-up over the number of ranks.
        before: Summary of the steps on one rank.
        after: Summary of the steps on all, each as long as on the slowest rank.
    """

    world_size: int
    speedup: float
    efficiency: float
    before: Summary
    after: Summary

    def __str__(self) -> str:
        return (
            f"{self.speedup:.2f} times the samples a second on {self.world_size} ranks "
            f"({self.efficiency:.0%} efficiency): medians of {self.before.num_steps} and "
            f"{self.after.num_steps} steps after {self.after.num_warm_up} of warm-up; the fastest "
            f"and the slowest are {self.before.spread:.0%} and {self.after.spread:.0%} apart"
        )


def report_speedup(
    before_s: Iterable[float],
    before_samples: int,
    after_s: Iterable[float],
    after_samples: int,
    world_size: int,
    num_warm_up: int = 1,
) -> Report:
    """
    Report a speed-up: medians, without warm-up, of samples a second, with the spread beside it.

    Args:
        before_s: Seconds of each step on one rank.
        before_samples: Samples of such a step.
        after_s: Seconds of each step on w ranks: see `of_slowest`.
        after_samples: Samples of such a step, over all ranks.
        world_size: Number of ranks, w.
        num_warm_up: How many of the first steps are left out, of both.

    Returns:
        Report: As text, it is a sentence.

    Raises:
        BadInput: There are no steps, or no samples.

    Source: T. Hoefler, R. Belli, "Scientific Benchmarking of Parallel Computing Systems", 2015.
    Lesson: 11_speed.
    """
    before, after = summarise(before_s, num_warm_up), summarise(after_s, num_warm_up)
    gain = speedup(before_samples / before.median_s, after_samples / after.median_s)
    return Report(world_size, gain, efficiency(gain, world_size), before, after)
