"""
Refuse a table that leaves something out, does something twice, or never comes to its end.

Legend: w ranks, M microbatches, v parts of the model on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import BadInput
from .calls import waiting_for_ever
from .tables import BACKWARD, FORWARD, Action

if TYPE_CHECKING:
    from .tables import Row


@dataclass(frozen=True)
class Fault:
    """
    Hold what is wrong with a table.

    Args:
        kind: "form" (no row of actions), "unknown" (no such action), "twice", "missing", "early" (a
            backward before its forward) or "stuck" (ranks wait for each other for ever).
        rank: The rank in whose row it is; None if it is between rows.
        text: A sentence about it.
    """

    kind: str
    rank: int | None
    text: str


def actions_of(row: Row) -> list[Action]:
    """
    Return a row as a list of Action. Pairs will do: ("F", 0) is the forward of microbatch 0.

    Raises:
        BadInput: It is no row of actions.
    """
    fault = _fault_of_form(row)
    if fault:
        raise BadInput(f"{fault} Give each rank a list such as [('F', 0), ('B', 0)].")
    return [Action(*one) for one in row]


def _fault_of_form(row):
    if not isinstance(row, list | tuple):
        return f"No row: expected a list of actions (got {type(row).__name__})."
    for one in row:
        is_action = isinstance(one, list | tuple) and len(one) in (2, 3)
        if not is_action or not all(type(number) is int for number in one[1:]):
            return f"No action: expected a kind and whole numbers (got {one!r:.40})."
    return None


def first_fault(
    table: Sequence[Row],
    num_microbatches: int,
    num_parts: int = 1,
    sends_wait: bool = False,
) -> Fault | None:
    """
    Return what is wrong with a table, the plainest first, or None.

    Args:
        table: For each rank a list of Action, or of pairs (kind, microbatch).
        num_microbatches: M.
        num_parts: v.
        sends_wait: Whether a send waits until the other rank receives.

    Returns:
        Fault: Or None if every rank does everything once, in an order that is possible.

    Lesson: 15_beyond_ddp, task 15.3.
    """
    for rank, row in enumerate(table):
        text = _fault_of_form(row)
        if text:
            return Fault("form", rank, text)
    rows = [actions_of(row) for row in table]
    for rank, row in enumerate(rows):
        fault = _fault_of_row(rank, row, num_microbatches, num_parts)
        if fault:
            return fault
    stuck = waiting_for_ever(rows, sends_wait)
    if stuck:
        waits = [f"rank {rank} waits in its {call}" for rank, call in stuck.items()]
        return Fault("stuck", None, f"It never ends: {'; '.join(waits)}.")
    return None


def _fault_of_row(rank, row, num_microbatches, num_parts):
    wanted = [
        Action(kind, number, part)
        for kind in (FORWARD, BACKWARD)
        for number in range(num_microbatches)
        for part in range(num_parts)
    ]
    seen: set[Action] = set()
    for action in row:
        if action not in wanted:
            numbers = f"microbatches go from 0 to {num_microbatches - 1}"
            text = f"Rank {rank} does {action}: {numbers}."
            return Fault("unknown", rank, text)
        if action in seen:
            return Fault("twice", rank, f"Rank {rank} does {action} twice.")
        if action.kind == BACKWARD and action._replace(kind=FORWARD) not in seen:
            text = f"Rank {rank} does {action} before {action._replace(kind=FORWARD)}."
            is_there = action._replace(kind=FORWARD) in row
            return Fault("early" if is_there else "missing", rank, text)
        seen.add(action)
    missing = [action for action in wanted if action not in seen]
    if missing:
        return Fault("missing", rank, f"Rank {rank} never does {missing[0]}.")
    return None


def check_table(
    table: Sequence[Row],
    num_microbatches: int,
    num_parts: int = 1,
    sends_wait: bool = False,
) -> None:
    """
    Refuse a table that real ranks could not run.

    Args:
        table: For each rank a list of Action, or of pairs (kind, microbatch).
        num_microbatches: M.
        num_parts: v.
        sends_wait: Whether a send waits until the other rank receives.

    Raises:
        BadInput: Something is missing, there twice, or in an order that never ends.

    Lesson: 15_beyond_ddp.
    """
    fault = first_fault(table, num_microbatches, num_parts, sends_wait)
    if fault:
        raise BadInput(
            f"Bad table: {fault.text} Expected every forward and every backward once, in an order "
            "in which nobody waits for ever. Correct its row."
        )


def most_alive(row: Row) -> int:
    """
    Return how many microbatches of a row are between forward and backward at most.

    Args:
        row: The actions of one rank. Each part of a microbatch counts.

    Lesson: 15_beyond_ddp.
    """
    alive = most = 0
    for kind, *_ in row:
        alive += 1 if kind == FORWARD else -1
        most = max(most, alive)
    return most
