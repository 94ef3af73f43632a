"""
The error for a case that did not end, because a rank raised or died, or of a deadlock or a
deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ddp_lessons.checks.kit.judging import CaseResult, printed_lines, wrong
from ddp_lessons.errors import PrivateNameGone, RankDied, WrongAnswer
from ddp_lessons.ranks.diagnosis.cell_report import raised_message
from ddp_lessons.ranks.messages.outcome import DIED, RAISED, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ddp_lessons.checks.kit.cases import Case
    from ddp_lessons.checks.kit.on_rank.rank_record import RankRecord
    from ddp_lessons.checks.kit.tasks import Task

BLANK = "is still blank"


MAX_WAITS = 4


def simulate_case(
    task: Task,
    case: Case,
    seen: list[RankRecord | None],
    printed: list[str],
    stops: Mapping[int, Outcome | str],
) -> CaseResult:
    """
    Return the CaseResult of a simulated world. Raise a WrongAnswer if a rank did not finish.

    Args:
        task: The Task.
        case: The Case.
        seen: A RankRecord for each rank, in rank order.
        printed: The text that each rank printed, in rank order.
        stops: {rank: reason} for the ranks that did not finish. The reason is an Outcome if the
            rank raised, and else the call in which it waits, in words.
    """
    if not stops:
        return CaseResult(task, case, cast("list[RankRecord]", seen), printed)
    raised = {rank: stop for rank, stop in stops.items() if isinstance(stop, Outcome)}
    waits = [f"rank {rank} waits for ever in its {stop}" for rank, stop in stops.items()]
    told = [raised_message(raised)[0]] if raised else waits[:MAX_WAITS]
    raise wrong(task, "more-ranks", [f"Tried with {case}.", *told, *printed_lines(printed)])


def wrong_end(
    task: Task,
    case: Case,
    error: Exception,
    outcomes: Mapping[int, Outcome],
    is_late: bool,
    printed: Iterable[str],
) -> WrongAnswer:
    """
    Return the WrongAnswer for a case that at least one rank did not finish.

    Args:
        task: The Task.
        case: The Case.
        error: The error with which the case's cell ended.
        outcomes: {rank: Outcome}.
        is_late: Whether the deadline passed.
        printed: The text that each rank printed, in rank order.

    Raises:
        PrivateNameGone: The course's own code needs a name that the installed packages lack.
    """
    raised = [outcome for outcome in outcomes.values() if outcome.kind == RAISED]
    for outcome in raised:
        if outcome.ename == PrivateNameGone.__name__:  # no fault of the answer
            raise PrivateNameGone(outcome.evalue)
    if raised and all(BLANK in outcome.evalue for outcome in raised):
        what = f"{task.name} {BLANK}: the line that raises NotImplementedError is still in it."
        if all(task.number not in outcome.evalue for outcome in raised):
            what = f"{task.name} calls another answer, which is missing: {raised[0].evalue}."
        return wrong(task, "blank", [what])
    lines = [f"Tried with {case}.", *str(error).splitlines(), *printed_lines(printed)]
    if str(error).startswith("Deadlock"):
        return wrong(task, "deadlock", lines)
    if any(outcome.kind == DIED for outcome in outcomes.values()):
        return wrong(task, "died", lines)
    if raised:  # the other ranks may have been released only at the deadline
        errors = [f"{outcome.ename}: {outcome.evalue}" for outcome in raised]
        return wrong(task, task.name_raised(errors), lines)
    if is_late:
        return wrong(task, "late", ["The answer did not finish in time.", *lines])
    return wrong(task, "deadlock" if isinstance(error, RankDied) else "mismatch", lines)
