"""
Put the events of all ranks in one order.

Legend: `traces` is one list of events a rank, in rank order. A logical time is a whole number: the
length of the longest chain of causes. It comes from the calls alone, so it is equal on every run.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ..errors import BadInput
from .events import COLLECTIVE, MESSAGE, SPAN, Event

_TO_ROOT = ("reduce", "gather")
_FROM_ROOT = ("broadcast", "scatter")


@dataclass(frozen=True)
class Placed:
    """
    Hold an event and its place on the clock that all ranks share.

    Args:
        event: The Event.
        start: When it was called: a whole number on the logical clock, microseconds on the wall's.
        end: When it was complete; None if it never was.
    """

    event: Event
    start: float
    end: float | None


def merge(
    traces: Sequence[Sequence[Event]], clock: Literal["wall", "logical"] = "logical"
) -> list[Placed]:
    """
    Return the events of all ranks in one order, each with its place on a common clock.

    On the logical clock an event comes after what caused it: what its own rank did before, and, for
    a wait, the calls of other ranks that it needs. Ties are in rank order.

    Args:
        traces: One list of events a rank, as `gather` returns them.
        clock: "logical", or "wall" for microseconds since the first event.

    Returns:
        list: A Placed for each event, in order of start, rank and index.

    Raises:
        BadInput: There is no such clock.

    Source: L. Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System",
    Communications of the ACM 21(7), 1978. Lesson: 02_collectives.
    """
    if clock not in ("logical", "wall"):
        raise BadInput(
            f"There is no such clock: expected 'logical' or 'wall' (got {clock!r}). Choose one."
        )
    placed = _on_wall(traces) if clock == "wall" else _on_logical_clock(traces)
    return sorted(placed, key=lambda it: (it.start, it.event.rank, it.event.index))


def match(traces: Sequence[Sequence[Event]]) -> list[dict[int, Event]]:
    """
    Return which calls of different ranks belong together.

    The k-th collective of a group on one rank belongs to the k-th on each other, if they are of
    one kind; the k-th send to a rank under a tag belongs to that rank's k-th receive from there.

    Args:
        traces: One list of events a rank.

    Returns:
        list: A dictionary from rank to Event for each call in which every rank took part.
    """
    return [met for met, missing in _meetings(traces) if not missing]


def unmatched(traces: Sequence[Sequence[Event]]) -> list[tuple[Event, tuple[int, ...]]]:
    """
    Return the calls in which not every rank took part, and who is missing.

    Args:
        traces: One list of events a rank.

    Returns:
        list: Pairs of an Event and a tuple of the ranks that never made the same call.
    """
    lonely = [
        (event, missing) for met, missing in _meetings(traces) if missing for event in met.values()
    ]
    nameless = [
        (event, ())
        for event in (event for events in traces for event in events)
        if event.kind == MESSAGE and event.peer is None
    ]
    return sorted(lonely + nameless, key=lambda pair: (pair[0].rank, pair[0].index))


def _meetings(traces):
    found = {}
    for event in (event for events in traces for event in events):
        if event.is_communication and event.sequence is not None:
            found.setdefault(_key(event), {})[event.rank] = event
    for key, met in found.items():
        if key[0] == MESSAGE:
            missing = tuple(sorted(set(key[3:5]) - met.keys()))
            yield met, missing
            continue
        # Ranks that are at different collectives do not meet, whatever their number.
        for name in dict.fromkeys(event.name for event in met.values()):
            same = {rank: event for rank, event in met.items() if event.name == name}
            first = next(iter(same.values()))
            yield same, tuple(sorted(set(first.ranks) - same.keys()))


def _key(event):
    if event.kind == COLLECTIVE:
        return COLLECTIVE, event.group, event.ranks, event.sequence
    source, target = (event.rank, event.peer) if event.is_send else (event.peer, event.rank)
    # A rank that sends to itself is both ends of a message, so the ends need keys of their own.
    side = event.name if source == target else None
    return MESSAGE, event.group, event.tag, source, target, event.sequence, side


def needs(event: Event, met: Mapping[int, Event]) -> list[int]:
    """
    Return the ranks whose calls must be made before `event` can be complete.

    Args:
        event: One of the calls of a meeting.
        met: Dictionary from rank to Event, as `match` returns it.
    """
    others = [rank for rank in met if rank != event.rank]
    if event.is_send:
        return []  # a send may be complete before the other rank receives
    if event.kind == MESSAGE:
        return others
    if event.name in _TO_ROOT:
        return others if event.rank == event.peer else []
    if event.name in _FROM_ROOT:
        return [rank for rank in others if rank == event.peer]
    return others


def _on_wall(traces):
    first_ns = min((event.start_ns for events in traces for event in events), default=0)
    for event in (event for events in traces for event in events):
        end = None if event.end_ns is None else (event.end_ns - first_ns) / 1000
        yield Placed(event, (event.start_ns - first_ns) / 1000, end)


def _on_logical_clock(traces):
    times = _longest_chains(*_causes(traces))
    for event in (event for events in traces for event in events):
        start = times.get((event.rank, event.index, "start"))
        end = times.get((event.rank, event.index, "end"), start)
        if _has_end(event):
            end = times.get((event.rank, event.index, "end"))
        if start is not None:  # a call that comes after a deadlock on paper has no time
            yield Placed(event, start, end)


def _has_end(event):
    return event.is_communication or event.kind == SPAN


def _causes(traces):
    """
    Return all moments, and for each the moments that must come before it.
    """
    complete = {
        (event.rank, event.index): [(rank, met[rank].index, "start") for rank in needs(event, met)]
        for met in match(traces)
        for event in met.values()
    }
    causes = {}
    for events in traces:
        moments = []  # (place, moment) of all that this rank's own order ties down
        for event in events:
            start = (event.rank, event.index, "start")
            moments.append((event.index, start))
            causes[start] = []
            if not _has_end(event):
                continue
            if event.is_communication and not event.is_send:
                others = complete.get((event.rank, event.index))
                if others is None:
                    continue  # somebody is missing: it is never complete
            else:
                others = []
            end = (event.rank, event.index, "end")
            causes[end] = [start, *others]
            if event.wait_index is not None:
                moments.append((event.wait_index, end))
        moments.sort()
        for (_, earlier), (_, later) in pairwise(moments):
            causes[later].append(earlier)
    return causes, list(causes)


def _longest_chains(causes, moments):
    effects, missing, times = {}, {}, {}
    for moment in moments:
        before = set(causes[moment])
        missing[moment] = len(before)
        for cause in before:
            effects.setdefault(cause, []).append(moment)
    ready = deque(moment for moment in moments if not missing[moment])
    while ready:
        moment = ready.popleft()
        times[moment] = max((times[cause] + 1 for cause in causes[moment]), default=0)
        for effect in effects.get(moment, ()):
            missing[effect] -= 1
            if not missing[effect]:
                ready.append(effect)
    return times
