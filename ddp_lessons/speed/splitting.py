"""
Split a step of each rank into what it did: compute, talk, wait, and what was hidden.

Legend: w ranks; a track is the list of one rank's spans, (kind, start_s, end_s), perhaps with a
label; kinds are "compute" and "communication". All tracks are on one clock. The k-th communication
of a rank meets the k-th of every other.

    called by this rank      called by the last rank            done
        |------ waiting ----------|------ communication ----------|

A rank that computes meanwhile neither waits nor talks: that part is hidden. So the step of each
rank is compute + communication + waiting + other, where communication is what shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..errors import BadInput
from .intervals import difference, intersection, length, union

if TYPE_CHECKING:
    Span: TypeAlias = tuple[str, float, float] | tuple[str, float, float, str]

COMPUTE, COMMUNICATION, WAITING = "compute", "communication", "waiting"


@dataclass(frozen=True)
class Split:
    """
    Hold where the time of one rank's step went. The first four make up the step.

    Args:
        compute_s: Seconds in which it computed, perhaps while messages were under way.
        communication_s: Seconds in which it did nothing but talk: what overlap did not hide.
        waiting_s: Seconds in which it did nothing but wait for a rank that had not called yet.
        other_s: Seconds in which nothing of it was recorded.
        hidden_s: Seconds in which it computed while a collective of its own was under way.
    """

    compute_s: float
    communication_s: float
    waiting_s: float
    other_s: float
    hidden_s: float

    @property
    def step_s(self) -> float:
        """
        Seconds of the step.
        """
        return self.compute_s + self.communication_s + self.waiting_s + self.other_s


def split_steps(tracks: Sequence[Sequence[Span]]) -> list[Split]:
    """
    Split the time of each rank, from its first span to its last.

    Args:
        tracks: For each rank its spans, on one clock.

    Returns:
        list: A Split for each rank.

    Raises:
        BadInput: There is no rank, a rank has no span, a kind is not known, or ranks differ in how
            many communications they have.

    Source: K. E. Isaacs and others, "State of the Art of Performance Visualization", 2014 (late
    senders); Meta's Holistic Trace Analysis, "Temporal breakdown". Lesson: 11_speed.
    """
    last_calls_s = last_calls(tracks)
    return [_split(track, last_calls_s) for track in tracks]


def last_calls(tracks: Sequence[Sequence[Span]]) -> list[float]:
    """
    Return for each communication the moment at which the last rank called it.

    Args:
        tracks: As for `split_steps`.

    Raises:
        BadInput: As for `split_steps`.

    Lesson: 11_speed.
    """
    starts_s = [[start_s for start_s, _ in of_kind(track, COMMUNICATION)] for track in tracks]
    if not tracks or not all(tracks):
        raise BadInput(
            "Nothing to split: expected spans of every rank (got a rank without, or no rank). "
            "Record the same step on all ranks."
        )
    unknown = {span[0] for track in tracks for span in track} - {COMPUTE, COMMUNICATION}
    if unknown:
        raise BadInput(
            f"Unknown kind: expected {COMPUTE} or {COMMUNICATION} (got {min(unknown)!r}). "
            "Waiting is what comes out."
        )
    counts = [len(own_s) for own_s in starts_s]
    if len(set(counts)) > 1:
        raise BadInput(
            f"Ranks differ: expected equally many communications on each (got {counts}). Record "
            "whole steps, the same on all ranks."
        )
    return [max(calls_s) for calls_s in zip(*starts_s, strict=True)]


def of_kind(track: Iterable[Span], kind: str) -> list[tuple[float, float]]:
    """
    Return the intervals of one kind, by start.
    """
    return sorted((span[1], span[2]) for span in track if span[0] == kind)


def with_waiting(tracks: Sequence[Sequence[Span]]) -> list[list[Span]]:
    """
    Return tracks with a span "waiting" where a rank did nothing but wait, for a picture.

    What was drawn as communication from its call on begins there when the last rank has called.

    Args:
        tracks: As for `split_steps`.

    Lesson: 11_speed.
    """
    last_calls_s = last_calls(tracks)
    drawn: list[list[Span]] = []
    for track in tracks:
        compute = of_kind(track, COMPUTE)
        late = list(zip(of_kind(track, COMMUNICATION), last_calls_s, strict=True))
        waiting = difference([(start, min(end, last)) for (start, end), last in late], compute)
        talks = [(COMMUNICATION, min(end, max(start, last)), end) for (start, end), last in late]
        drawn.append(
            [span for span in track if span[0] == COMPUTE]
            + [span for span in talks if span[1] < span[2]]
            + [(WAITING, start, end) for start, end in waiting]
        )
    return drawn


def _split(track, last_calls_s):
    compute = union(of_kind(track, COMPUTE))
    calls = of_kind(track, COMMUNICATION)
    before = [
        (start_s, min(end_s, last_s))
        for (start_s, end_s), last_s in zip(calls, last_calls_s, strict=True)
    ]
    after = [
        (max(start_s, min(end_s, last_s)), end_s)
        for (start_s, end_s), last_s in zip(calls, last_calls_s, strict=True)
    ]
    # While one message is under way, a rank that waits for another one talks all the same.
    talking = difference(after, compute)
    waiting = difference(difference(before, after), compute)
    step_s = max(span[2] for span in track) - min(span[1] for span in track)
    parts_s = length(compute), length(talking), length(waiting)
    return Split(*parts_s, step_s - sum(parts_s), length(intersection(calls, compute)))
