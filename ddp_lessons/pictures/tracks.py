"""
From a trace to the spans of a timeline.
"""

from collections.abc import Iterable
from typing import Protocol

from ddp_lessons.pictures.inputs import need_some


class _Event(Protocol):
    # Pictures read these attributes of a `ddp_lessons.trace.Event`; they import nothing of traces.
    kind: str
    name: str
    rank: int
    start_ns: int
    wait_start_ns: int | None
    wait_end_ns: int | None
    backward: int | None
    group: str | None
    ranks: tuple[int, ...]
    sequence: int | None


class _Placed(Protocol):
    @property
    def event(self) -> _Event: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float | None: ...


def timeline_tracks(
    placed: Iterable[_Placed], per_unit: float = 1
) -> list[list[tuple[str, float, float, str]]]:
    """
    Return the spans that `timeline_picture` draws, from events with their place on a clock.

    Collectives and messages are communication. Spans that the user marked are compute, and so is
    a backward pass from its first gradient to its last. On the wall clock, waiting is drawn, too:
    the times in which Python waited, and for a collective that Python did not wait for, such as
    those of DDP, the time until its last rank has called it. A logical clock has no durations, so
    it has no waiting. Communication that never ended is drawn to the end of the picture, and its
    label says so.

    Args:
        placed: The result of `ddp_lessons.trace.merge`: objects with `event`, `start` and `end`.
        per_unit: How much of the clock is one of the picture: 1000 makes microseconds into ms.

    Returns:
        list: For each rank its spans (kind, start, stop, label), in that unit.

    Raises:
        BadInput: There is no event.

    Lessons: 04_samplers, 05_replicas.
    """
    placed = list(placed)
    need_some(placed, "events")
    last = max(it.start if it.end is None else it.end for it in placed)
    tracks = [[] for _ in range(1 + max(it.event.rank for it in placed))]
    backwards, arrivals = {}, _last_arrivals(placed)
    for it in placed:
        event, spans = it.event, tracks[it.event.rank]
        if event.kind in ("collective", "message"):
            label = event.name if it.end is not None else f"{event.name}, never ended"
            stop = max(it.start, last if it.end is None else it.end)
            # Until its last rank has come, a collective moves nothing: its other ranks wait.
            start = min(stop, max(it.start, arrivals.get(_call(event), it.start)))
            if start > it.start:
                spans.append(("waiting", it.start, start, "wait"))
            spans.append(("communication", start, stop, label))
            spans += _waiting(it)
        elif event.kind == "span" and it.end is not None:
            spans.append(("compute", it.start, it.end, event.name))
        elif event.kind == "gradient":
            backwards.setdefault((event.rank, event.backward), []).append(it.start)
    for (rank, _), times in backwards.items():
        tracks[rank].append(("compute", min(times), max(times), "backward"))
    if per_unit == 1:  # a logical clock's numbers stay whole
        return tracks
    return [
        [(kind, start / per_unit, stop / per_unit, label) for kind, start, stop, label in spans]
        for spans in tracks
    ]


def _call(event):
    return event.group, event.ranks, event.name, event.sequence


def _last_arrivals(placed):
    # For each collective on the wall clock that all its ranks have called: when the last one came.
    starts = {}
    for it in placed:
        is_timed = isinstance(it.start, float) and it.event.wait_start_ns is None
        if it.event.kind == "collective" and it.event.sequence is not None and is_timed:
            starts.setdefault(_call(it.event), {})[it.event.rank] = it.start
    return {
        call: max(of_rank.values())
        for call, of_rank in starts.items()
        if of_rank.keys() == set(call[1])
    }


def _waiting(it):
    event = it.event
    # Whole numbers are a logical clock's; on the wall's a moment is a float, in microseconds.
    if isinstance(it.start, int) or event.wait_start_ns is None or event.wait_end_ns is None:
        return []
    start, stop = (
        it.start + (moment_ns - event.start_ns) / 1000
        for moment_ns in (event.wait_start_ns, event.wait_end_ns)
    )
    return [("waiting", start, stop, "wait")]
