"""
What each rank of a pipeline does, in order. A table has a row for each rank, a row its actions.

Legend: w ranks; M microbatches, parts of a step's batch, numbered from 0; v parts of the model on
each rank. Part c of rank r is stage c w + r of v w stages: all first parts come before all second
ones. With v = 1, rank r has stage r.

    GPipe          F0 F1 F2 F3 B0 B1 B2 B3     rank r keeps M microbatches
    1F1B           F0 F1 B0 F2 B1 F3 B2 B3     rank r keeps w - r of them, M at most
    interleaved    1F1B with v parts           rank r keeps more, and idles less

A table is data: whoever runs it, checks it or draws it reads the same rows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...errors import BadInput

if TYPE_CHECKING:
    Row = Sequence[tuple[str, int] | tuple[str, int, int]]

FORWARD = "F"
BACKWARD = "B"


class Action(NamedTuple):
    """
    Hold one thing that a rank does.

    Args:
        kind: "F" for forward, "B" for backward.
        microbatch: Which of the microbatches, from 0.
        part: Which of the rank's parts of the model, from 0.
    """

    kind: str
    microbatch: int
    part: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f" of part {self.part}" if self.part else "")


def gpipe(num_ranks: int, num_microbatches: int) -> list[list[Action]]:
    """
    Return the table in which each rank does all its forwards, then all its backwards.

    Args:
        num_ranks: w.
        num_microbatches: M.

    Returns:
        list: For each rank a list of Action.

    Raises:
        BadInput: There is no rank or no microbatch.

    Source: Y. Huang et al., "GPipe", NeurIPS 2019. Lesson: 15_beyond_ddp.
    """
    need_pipeline(num_ranks, num_microbatches)
    microbatches = range(num_microbatches)
    forwards = [Action(FORWARD, microbatch) for microbatch in microbatches]
    backwards = [Action(BACKWARD, microbatch) for microbatch in microbatches]
    return [forwards + backwards for _ in range(num_ranks)]


def one_f_one_b(num_ranks: int, num_microbatches: int) -> list[list[Action]]:
    """
    Return the table in which ranks begin with backwards as soon as they can.

    Rank r makes as many forwards as it takes until the first gradient comes back, min(M, w - r).
    Then backwards and forwards take turns, and what is left are backwards.

    Args:
        num_ranks: w.
        num_microbatches: M.

    Returns:
        list: For each rank a list of Action.

    Raises:
        BadInput: There is no rank or no microbatch.

    Source: D. Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (the
    name and the flushed form). Lesson: 15_beyond_ddp, task 15.3.
    """
    need_pipeline(num_ranks, num_microbatches)
    orders = [_in_turns(num_microbatches, num_ranks - rank) for rank in range(num_ranks)]
    return [[Action(kind, number) for kind, number in order] for order in orders]


def interleaved(num_ranks: int, num_microbatches: int, num_parts: int) -> list[list[Action]]:
    """
    Return the table of 1F1B in which each rank has several parts of the model.

    A rank takes w microbatches through its first part, then the same through its second, and so on.
    A part is shorter than a stage of w would be: so is what ranks wait for at the start and at the
    end. The price is v times as many messages, and more microbatches alive.

    Args:
        num_ranks: w.
        num_microbatches: M, a multiple of w.
        num_parts: v.

    Returns:
        list: For each rank a list of Action.

    Raises:
        BadInput: There is no rank, microbatch or part, or M is no multiple of w.

    Source: D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM", SC 2021, section 2.2. Lesson: 15_beyond_ddp.
    """
    need_pipeline(num_ranks, num_microbatches, num_parts)
    if num_microbatches % num_ranks:
        raise BadInput(
            f"Microbatches do not divide: expected a multiple of {num_ranks} ranks (got "
            f"{num_microbatches}). Cut the batch into other pieces."
        )
    table = []
    for rank in range(num_ranks):
        num_first = (num_parts - 1) * num_ranks + 2 * (num_ranks - rank - 1) + 1
        order = _in_turns(num_microbatches * num_parts, num_first)
        table.append([_of_parts(kind, place, num_ranks, num_parts) for kind, place in order])
    return table


def _in_turns(num_each, num_first):
    # So many forwards first, then backwards and forwards in turns, then the backwards left.
    num_first = min(num_first, num_each)
    order = [(FORWARD, number) for number in range(num_first)]
    for number in range(num_each):
        order.append((BACKWARD, number))
        if num_first + number < num_each:
            order.append((FORWARD, num_first + number))
    return order


def _of_parts(kind, place, num_ranks, num_parts):
    turn, within = divmod(place, num_ranks * num_parts)
    part, number = divmod(within, num_ranks)
    if kind == BACKWARD:
        part = num_parts - 1 - part
    return Action(kind, turn * num_ranks + number, part)


def need_pipeline(num_ranks: int, num_microbatches: int, num_parts: int = 1) -> None:
    """
    Refuse a pipeline in which nothing would be done.

    Args:
        num_ranks: w.
        num_microbatches: M.
        num_parts: v.

    Raises:
        BadInput: One of them is below 1.
    """
    if min(num_ranks, num_microbatches, num_parts) < 1:
        raise BadInput(
            "No such pipeline: expected 1 rank, 1 microbatch and 1 part at least (got "
            f"{num_ranks}, {num_microbatches} and {num_parts}). Correct them."
        )
