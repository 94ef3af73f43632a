"""
Count the bytes that cross from host to host.

A message tells its peer. A collective does not tell its messages: those of a ring in rank order are
counted, or of a tree where there is a root, as `costs` plans them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..costs import schedule
from .hosts import host_of

if TYPE_CHECKING:
    from ..trace import Event

_PLANS = {  # a collective of torch by the beginning of its name: how it is counted
    "all_reduce": "ring",
    "allreduce": "ring",
    "all_gather": "ring",
    "all_to_all": "ring",
    "reduce_scatter": "ring",
    "broadcast": "tree",
    "reduce": "tree",
    "gather": "hub",
    "scatter": "hub",
}


def crossing_bytes(events: Iterable[Event], layout: Sequence[Sequence[int]]) -> int:
    """
    Return the bytes that a rank sends to other hosts.

    Args:
        events: Its trace.
        layout: For each host its ranks.

    Returns:
        int: Bytes. Of all ranks of a host together they are what its cable carries away.

    Lesson: 17_many_machines.
    """
    return sum(_crossing(event, layout) for event in events if event.is_communication)


def _crossing(event, layout):
    if event.is_send:
        return (host_of(layout, event.peer) != host_of(layout, event.rank)) * event.input_bytes
    known = [name for name in _PLANS if event.name.startswith(name)]
    if not known or len({host_of(layout, rank) for rank in event.ranks}) == 1:
        return 0
    name = max(known, key=len)  # "reduce_scatter" begins with "reduce", too
    collective = "all_reduce" if name == "allreduce" else name
    root = 0 if event.peer is None else event.ranks.index(event.peer)
    size = len(event.ranks)
    plan = schedule(collective, _PLANS[name], size, _whole_bytes(collective, event, size), root)
    return _sent_across(plan, event, layout)


def _whole_bytes(collective, event, size):
    if collective == "gather":
        return event.input_bytes * size
    if collective == "scatter":
        return event.output_bytes * size
    return max(event.input_bytes, event.output_bytes)


def _sent_across(plan, event, layout):
    # A byte counts as an element here, so that plans cut into chunks of bytes.
    home = host_of(layout, event.rank)
    return sum(
        plan.num_elements(transfer)
        for step in plan.steps
        for transfer in step
        if event.ranks[transfer.sender] == event.rank
        and host_of(layout, event.ranks[transfer.receiver]) != home
    )
