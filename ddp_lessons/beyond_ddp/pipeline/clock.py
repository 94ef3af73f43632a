"""
A clock for tables: when each action is done, if a forward takes one tick and a backward two.

A backward computes two gradients, that of its input and that of its weights, where a forward
computes one output. Messages take no time here.

Legend: w ranks, M microbatches, v parts of the model on each rank. The **bubble** is the share of
all ranks' ticks in which they do nothing: (w - 1) / (v M + w - 1) for the tables of `tables`, as
`costs.bubble_share` foretells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING

from ...errors import BadInput
from .calls import made_by, needed_by, num_parts_of
from .checking import actions_of
from .tables import BACKWARD, FORWARD

if TYPE_CHECKING:
    from .tables import Row


def timetable(
    table: Sequence[Row], forward_ticks: int = 1, backward_ticks: int = 2
) -> list[list[tuple[str, str, int, int]]]:
    """
    Return when each rank does what, each action as early as its turn and its input allow.

    Args:
        table: For each rank its actions, in order; perhaps those that a run has really done.
        forward_ticks: Ticks of a forward of one part.
        backward_ticks: Ticks of a backward of one part.

    Returns:
        list: For each rank (kind, label, start, stop) of each action; the label is its microbatch,
        and if a rank has several parts a letter for the part. `timetable_picture` draws it.

    Raises:
        BadInput: Ranks would wait for each other for ever.

    Source: Y. Huang et al., "GPipe", NeurIPS 2019, section 2.3 (the bubble). Lesson: 15_beyond_ddp.
    """
    rows = [actions_of(row) for row in table]
    ticks = {FORWARD: forward_ticks, BACKWARD: backward_ticks}
    spans: list[list] = [[] for _ in rows]
    done: dict = {}  # what was made -> the tick at which it is there
    while any(len(spans[rank]) < len(row) for rank, row in enumerate(rows)):
        if not any(_get_on(rank, rows, spans, done, ticks) for rank in range(len(rows))):
            raise BadInput(
                "No time at which it ends: expected an order in which nobody waits for ever (got "
                "ranks that wait for each other). Ask waiting_for_ever who they are."
            )
    return spans


def _get_on(rank, rows, spans, done, ticks):
    # Let a rank get on as far as it comes, and say whether it has.
    own, num_parts = spans[rank], num_parts_of(rows)
    num_before = len(own)
    for action in rows[rank][num_before:]:
        made = made_by(action, rank, len(rows))
        needed = needed_by(made, len(rows) * num_parts)
        if needed is not None and needed not in done:
            break
        start = max(own[-1][3] if own else 0, done.get(needed, 0))
        done[made] = start + ticks[action.kind]
        letter = ascii_lowercase[action.part % 26] if num_parts > 1 else ""
        own.append((action.kind, f"{action.microbatch}{letter}", start, done[made]))
    return len(own) > num_before


def total_ticks(spans: Sequence[Sequence[tuple[str, str, int, int]]]) -> int:
    """
    Return the tick at which the last rank is through.

    Args:
        spans: What `timetable` returns.

    Lesson: 15_beyond_ddp.
    """
    return max((stop for row in spans for _, _, _, stop in row), default=0)


def bubble(spans: Sequence[Sequence[tuple[str, str, int, int]]]) -> float:
    """
    Return the share of all ranks' ticks in which they do nothing.

    Args:
        spans: What `timetable` returns.

    Raises:
        BadInput: Nothing was done.

    Lesson: 15_beyond_ddp.
    """
    total = len(spans) * total_ticks(spans)
    if not total:
        raise BadInput(
            "No bubble: expected a rank that does something (got none). Give each rank actions."
        )
    return 1 - sum(stop - start for row in spans for _, _, start, stop in row) / total
