"""
The cost of a schedule on a link: messages, bytes and seconds of each rank.

The model is the latency-bandwidth one: a message of n bytes takes latency + n / bandwidth, and a
rank sends one message and receives one at a time. It knows nothing of lines that cross, of caches
or of a slow rank; where a measurement differs, one of these is why.
"""

from dataclasses import dataclass

from ddp_lessons.costs.chunks import need_count
from ddp_lessons.costs.schedules import Schedule, schedule
from ddp_lessons.errors import BadInput


@dataclass(frozen=True)
class Link:
    """
    The cost of a message on a link.

    Args:
        latency_s: Seconds that a message of no bytes takes.
        bandwidth_bytes_per_s: Bytes a second that it takes beyond that.
        add_s_per_byte: Seconds to add a received byte to one's own.

    Raises:
        BadInput: A number is negative, or the bandwidth is not positive.

    Source: Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", 1994; the
    third number from Thakur, Rabenseifner, Gropp, 2005. Lesson: 03_ring.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    add_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        for name in ("latency_s", "add_s_per_byte"):
            if not getattr(self, name) >= 0:
                raise BadInput(
                    f"Bad {name}: expected a number of at least 0 (got {getattr(self, name)!r}). "
                    "Pass seconds."
                )
        if not self.bandwidth_bytes_per_s > 0:
            raise BadInput(
                "Bad bandwidth_bytes_per_s: expected a number above 0 "
                f"(got {self.bandwidth_bytes_per_s!r}). Pass bytes a second."
            )

    def message_s(self, num_bytes: float, adds: bool = False) -> float:
        """
        Return the seconds of one message.

        Args:
            num_bytes: Its length in bytes.
            adds: Whether the receiver adds it to its own.
        """
        per_byte = 1 / self.bandwidth_bytes_per_s + adds * self.add_s_per_byte
        return self.latency_s + num_bytes * per_byte


@dataclass(frozen=True)
class RankCost:
    """
    The cost of one collective for one rank.

    Args:
        rank: The rank.
        num_sent: Messages that it sends.
        num_received: Messages that it receives.
        sent_bytes: Bytes that it sends.
        received_bytes: Bytes that it receives.
        finish_s: Seconds from the start, at which all begin together, to its last message.
    """

    rank: int
    num_sent: int
    num_received: int
    sent_bytes: int
    received_bytes: int
    finish_s: float


def rank_costs(plan: Schedule, element_bytes: int, link: Link | None = None) -> list[RankCost]:
    """
    Count what each rank pays for a schedule.

    Args:
        plan: A Schedule.
        element_bytes: Bytes of an element, 4 for float32.
        link: A Link; None counts messages and bytes only, and finishes at 0 s.

    Returns:
        list of RankCost: One a rank, in rank order. Bytes are exact, for any length.

    Raises:
        BadInput: `element_bytes` is no whole number of at least 1.

    Lesson: 03_ring.
    """
    need_count("element_bytes", element_bytes, at_least=1)
    ranks = range(plan.world_size)
    num_sent, num_received = [0 for _ in ranks], [0 for _ in ranks]
    sent, received = [0 for _ in ranks], [0 for _ in ranks]
    clock_s = [0.0 for _ in ranks]
    for step in plan.steps:
        after_s = list(clock_s)
        for transfer in filter(plan.is_sent, step):
            a, b = transfer.sender, transfer.receiver
            num_bytes = plan.num_elements(transfer) * element_bytes
            num_sent[a] += 1
            num_received[b] += 1
            sent[a] += num_bytes
            received[b] += num_bytes
            if link is not None:
                # A message starts when both ends are done with their step before.
                end_s = max(clock_s[a], clock_s[b]) + link.message_s(num_bytes, transfer.adds)
                after_s[a], after_s[b] = max(after_s[a], end_s), max(after_s[b], end_s)
        clock_s = after_s
    return [
        RankCost(r, num_sent[r], num_received[r], sent[r], received[r], clock_s[r]) for r in ranks
    ]


def sent_bytes(
    collective: str,
    algorithm: str,
    world_size: int,
    num_elements: int,
    element_bytes: int,
    root: int = 0,
) -> list[int]:
    """
    Count the bytes that each rank sends.

    Args:
        collective: A key of `ALGORITHMS`.
        algorithm: One of its algorithms.
        world_size: Number of ranks.
        num_elements: Length of the whole tensor.
        element_bytes: Bytes of an element.
        root: The rank in the middle, where there is one.

    Returns:
        list of int: Bytes, one number a rank. Their sum is the same for a hub and for a ring
        all-reduce: what differs is the busiest rank.

    Raises:
        BadInput: An argument is out of range.

    Lesson: 03_ring.
    """
    plan = schedule(collective, algorithm, world_size, num_elements, root)
    return [cost.sent_bytes for cost in rank_costs(plan, element_bytes)]
