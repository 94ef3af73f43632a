"""
What a trace is made of: plain events that pickle and that JSON can hold.

Legend: rank r of w. Times are nanoseconds of the monotonic clock; an index counts what happened
on one rank, in the order in which it happened.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields

COLLECTIVE = "collective"
MESSAGE = "message"
GRADIENT = "gradient"
MARK = "mark"
SPAN = "span"
KINDS = (COLLECTIVE, MESSAGE, GRADIENT, MARK, SPAN)


@dataclass(slots=True)
class Event:
    """
    Hold one thing that happened on one rank.

    Args:
        kind: "collective", "message" (one send or receive), "gradient" (one is ready), "mark" or
            "span" (set by the user).
        name: torch's name of the operation, such as "all_reduce"; a parameter's name; a
            mark's text.
        rank: The rank in the default group.
        index: Place among all that this rank recorded. A wait takes a place of its own.
        start_ns: When the call was made, before the backend saw it.
        end_ns: When it was seen to be complete; None if it never was. On NCCL it is when the work
            was queued on the device, not when the device was done.
        wait_start_ns: When Python began to wait for it; None if Python never did, as for DDP's
            buckets, which C++ waits for.
        wait_end_ns: When that wait returned.
        wait_index: Place at which that wait returned, or at which a span was closed.
        backward: Number of the backward pass that was running, from 0; None outside of one.
        group: Name of the process group.
        ranks: Ranks of the group, numbered as in the default group.
        peer: The other rank of a message, or the root of a collective that has one.
        tag: Tag of a message.
        sequence: Number among the collectives of this group, or among the messages of one
            direction, peer and tag.
        input_bytes: Bytes of this rank's tensors that the call reads.
        output_bytes: Bytes of this rank's tensors that the call writes.
        dtype: Element type, such as "float32".
        reduce_op: "SUM", "AVG" and so on, where something is reduced.
        thread: Which thread made the call: 0 is the first that made one. What another thread has
            done before need not have been waited for.

    Lesson: 02_collectives.
    """

    kind: str
    name: str
    rank: int
    index: int
    start_ns: int
    end_ns: int | None = None
    wait_start_ns: int | None = None
    wait_end_ns: int | None = None
    wait_index: int | None = None
    backward: int | None = None
    group: str | None = None
    ranks: tuple[int, ...] = ()
    peer: int | None = None
    tag: int | None = None
    sequence: int | None = None
    input_bytes: int = 0
    output_bytes: int = 0
    dtype: str | None = None
    reduce_op: str | None = None
    thread: int = field(default=0, repr=False)

    @property
    def is_communication(self) -> bool:
        """
        Tell whether the event is a collective or a message.
        """
        return self.kind in (COLLECTIVE, MESSAGE)

    @property
    def is_send(self) -> bool:
        """
        Tell whether the event is the sending side of a message.
        """
        return self.kind == MESSAGE and self.name == "send"

    @property
    def is_receive(self) -> bool:
        """
        Tell whether the event is the receiving side of a message.
        """
        return self.kind == MESSAGE and self.name != "send"


def to_plain(events: Iterable[Event]) -> list[dict[str, object]]:
    """
    Return events as dictionaries that JSON can hold.

    Args:
        events: Events of one rank.

    Returns:
        list: One dictionary an event; `from_plain` turns them back.
    """
    return [asdict(event) for event in events]


def from_plain(records: Iterable[Mapping[str, object]]) -> list[Event]:
    """
    Return the events that `to_plain` wrote, also after they went through JSON.

    Args:
        records: List of dictionaries with the fields of Event.
    """
    names = {known.name for known in fields(Event)}
    return [
        Event(**{name: value for name, value in record.items() if name in names} | _ranks(record))
        for record in records
    ]


def _ranks(record):
    return {"ranks": tuple(record.get("ranks", ()))}  # JSON knows no tuples
