"""
Bring the events of all ranks together, on one clock.

Legend: rank r of w. An offset is what to add to a rank's monotonic clock to read rank 0's.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .events import Event

NUM_ROUNDS = 9
"""
Barriers by which clocks of different machines are compared.
"""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def gather(events: Iterable[Event], group: dist.ProcessGroup | None = None) -> list[list[Event]]:
    """
    Return the events of every rank of a group, with times on the clock of its first rank.

    Collective: every rank of the group must call it, after the block that was traced.

    Args:
        events: This rank's events.
        group: The process group; None means the default group.

    Returns:
        list: One list of events a rank, in the group's rank order.

    Lesson: 02_collectives.
    """
    traces: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(traces, list(events), group=group)
    offsets = clock_offsets_ns(group)
    return [
        [shifted(event, offset_ns) for event in trace]
        for trace, offset_ns in zip(traces, offsets, strict=True)
    ]


def shifted(event: Event, offset_ns: int) -> Event:
    """
    Return an event with `offset_ns` added to its times.
    """
    names = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
    times = {name: getattr(event, name) for name in names}
    moved = {name: when + offset_ns for name, when in times.items() if when is not None}
    return replace(event, **moved)


def clock_offsets_ns(
    group: dist.ProcessGroup | None = None, machine: str | None = None
) -> list[int]:
    """
    Return what to add to each rank's monotonic clock to read that of the group's first rank.

    Ranks of one machine share the clock: 0. Others leave a few barriers together; the median of the
    differences is taken. It is wrong by at most the time in which ranks leave a barrier.

    Collective: every rank of the group must call it.

    Args:
        group: The process group; None means the default group.
        machine: A name for the machine whose clock this rank reads. Default: its boot id.

    Returns:
        list: One number of nanoseconds a rank; the first is 0.
    """
    machines: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(machines, _machine() if machine is None else machine, group=group)
    if None not in machines and len(set(machines)) == 1:
        return [0] * len(machines)
    leaving_ns = []
    for _ in range(NUM_ROUNDS):
        dist.barrier(group)
        leaving_ns.append(time.monotonic_ns())
    everyone: list = [None] * len(machines)
    dist.all_gather_object(everyone, leaving_ns, group=group)
    return [
        0
        if name is not None and name == machines[0]
        else int(median(first - own for first, own in zip(everyone[0], theirs, strict=True)))
        for name, theirs in zip(machines, everyone, strict=True)
    ]


def _machine():
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None  # not Linux: the clocks are compared
