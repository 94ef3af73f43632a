"""
Answer the usual questions about a trace, each in one call.

Legend: `events` are those of one rank, `traces` one list of events a rank, in rank order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .events import COLLECTIVE, GRADIENT, Event
from .merge import match


@dataclass(frozen=True)
class Traffic:
    """
    Hold what one rank sent and received.

    Args:
        rank: The rank.
        num_sent: Messages that it sent.
        sent_bytes: Their bytes.
        num_received: Messages that it received.
        received_bytes: Their bytes.
        num_collectives: Collectives that it took part in.
        collective_input_bytes: Bytes of its tensors that these read.
        collective_output_bytes: Bytes of its tensors that these wrote.
    """

    rank: int
    num_sent: int
    sent_bytes: int
    num_received: int
    received_bytes: int
    num_collectives: int
    collective_input_bytes: int
    collective_output_bytes: int


@dataclass(frozen=True)
class Wait:
    """
    Hold who waited for whom in one call, and how long.

    Args:
        rank: Who waited.
        for_rank: Who came last.
        name: The operation.
        index: The index of the waiting rank's event.
        duration_s: Seconds in which the one was blocked and the other had not yet called.
    """

    rank: int
    for_rank: int
    name: str
    index: int
    duration_s: float


def traffic(traces: Sequence[Sequence[Event]]) -> list[Traffic]:
    """
    Return what each rank sent and received.

    Bytes of messages are exact. How a backend moves the bytes of a collective is its own matter:
    what is counted is what went in and came out.

    Args:
        traces: One list of events a rank.

    Returns:
        list: One Traffic a rank.

    Lesson: 03_ring.
    """
    return [_traffic(rank, events) for rank, events in enumerate(traces)]


def _traffic(rank, events):
    sends = [event for event in events if event.is_send]
    receives = [event for event in events if event.is_receive]
    shared = [event for event in events if event.kind == COLLECTIVE]
    return Traffic(
        rank,
        len(sends),
        sum(event.input_bytes for event in sends),
        len(receives),
        sum(event.output_bytes for event in receives),
        len(shared),
        sum(event.input_bytes for event in shared),
        sum(event.output_bytes for event in shared),
    )


def bytes_sent(traces: Sequence[Sequence[Event]]) -> list[int]:
    """
    Return the bytes that each rank sent in messages, in rank order.

    Args:
        traces: One list of events a rank.

    Lesson: 03_ring.
    """
    return [row.sent_bytes for row in traffic(traces)]


def bytes_received(traces: Sequence[Sequence[Event]]) -> list[int]:
    """
    Return the bytes that each rank received in messages, in rank order.

    Args:
        traces: One list of events a rank.

    Lesson: 03_ring.
    """
    return [row.received_bytes for row in traffic(traces)]


def collectives(events: Iterable[Event]) -> list[str]:
    """
    Return the names of the collectives that a rank called, in order.

    Args:
        events: Events of one rank.

    Lesson: 05_replicas.
    """
    return [event.name for event in events if event.kind == COLLECTIVE]


def argument_bytes(events: Iterable[Event]) -> dict[str, tuple[int, int]]:
    """
    Return the bytes that went into each call's arguments on this rank, and came out of them.

    What travels between ranks is another number: it depends on how the backend makes the call.

    Args:
        events: Events of one rank. Of two calls with the same name the later one counts.

    Returns:
        dict: Name of the call -> (bytes in, bytes out).

    Lesson: 02_collectives.
    """
    calls = [event for event in events if event.is_communication]
    return {call.name: (call.input_bytes, call.output_bytes) for call in calls}


def early_communications(events: Sequence[Event]) -> list[Event]:
    """
    Return the calls that were made while gradients of the same backward pass were still to come.

    Args:
        events: Events of one rank, recorded with the model given to `trace`.

    Returns:
        list: Collectives and messages between the first and the last gradient of a backward pass.

    Lesson: 05_replicas.
    """
    first, last = {}, {}
    for event in events:
        if event.kind == GRADIENT:
            first.setdefault(event.backward, event.index)
            last[event.backward] = event.index
    return [
        event
        for event in events
        if event.is_communication
        and any(first[number] < event.index < last[number] for number in last)
    ]


def overlaps_backward(events: Sequence[Event]) -> bool:
    """
    Tell whether some communication started before the last gradient was ready.

    Args:
        events: Events of one rank, recorded with the model given to `trace`.

    Lesson: 05_replicas.
    """
    return bool(early_communications(events))


def waits(traces: Sequence[Sequence[Event]]) -> list[Wait]:
    """
    Return who waited for whom, and how long.

    A rank waits from the moment at which it stops working for the call (it waits in Python, or its
    last gradient is ready and C++ waits) to the moment at which the last other rank makes its call.
    If the call was complete before, as for a send into a buffer, it waits until then.

    Args:
        traces: One list of events a rank, with times on one clock, as `gather` returns them.

    Returns:
        list: A Wait for each rank and call that had to wait, in order of rank and index.

    Lesson: 04_samplers.
    """
    ready_ns = _last_gradient_ns(traces)
    found = []
    for met in match(traces):
        for event in met.values():
            others = [other for other in met.values() if other is not event]
            if others and event.end_ns is not None:
                late = max(others, key=lambda other: other.start_ns)
                until_ns = min(late.start_ns, event.end_ns)
                waited_ns = until_ns - _blocked_from_ns(event, ready_ns)
                if waited_ns > 0:
                    place = (event.rank, late.rank, event.name, event.index)
                    found.append(Wait(*place, waited_ns / 1e9))
    return sorted(found, key=lambda wait: (wait.rank, wait.index))


def _last_gradient_ns(traces):
    ready_ns = {}
    for event in (event for events in traces for event in events):
        if event.kind == GRADIENT:
            ready_ns[(event.rank, event.backward)] = event.start_ns
    return ready_ns


def _blocked_from_ns(event, ready_ns):
    if event.wait_start_ns is not None:
        return event.wait_start_ns
    return max(event.start_ns, ready_ns.get((event.rank, event.backward), 0))


def waiting_s(traces: Sequence[Sequence[Event]]) -> list[list[float]]:
    """
    Return how long each rank waited for each other, summed over all calls.

    Args:
        traces: One list of events a rank, with times on one clock.

    Returns:
        list: Row r, column s holds the seconds that rank r waited for rank s.

    Lesson: 04_samplers.
    """
    table = [[0.0] * len(traces) for _ in traces]
    for wait in waits(traces):
        table[wait.rank][wait.for_rank] += wait.duration_s
    return table
