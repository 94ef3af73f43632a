"""
Say why a case came to no end: a rank that raised or died, a deadlock, or no time left.
"""

from ddp_lessons.checks.kit.judging import CaseResult, printed_lines, wrong
from ddp_lessons.errors import RankDied
from ddp_lessons.ranks.diagnosis.cell_report import DIED, RAISED, Outcome, raised_message

BLANK = "is still blank"


MAX_WAITS = 4


def simulate_case(task, case, seen, printed, stops):
    """
    Return the CaseResult of a world on paper, or raise the WrongAnswer if a rank did not get through.

    Args:
        task: The Task.
        case: The Case.
        seen: A Seen for each rank, in rank order.
        printed: What each rank printed.
        stops: For each rank that did not get through its Outcome, if it raised, or what it waits
            for, in words.
    """
    if not stops:
        return CaseResult(task, case, seen, printed)
    raised = {rank: stop for rank, stop in stops.items() if isinstance(stop, Outcome)}
    waits = [f"rank {rank} waits for ever in its {stop}" for rank, stop in stops.items()]
    told = [raised_message(raised)[0]] if raised else waits[:MAX_WAITS]
    raise wrong(task, "more-ranks", [f"Tried with {case}.", *told, *printed_lines(printed)])


def wrong_end(task, case, error, outcomes, is_late, printed):
    """
    Return the WrongAnswer for a case that some rank did not get through.

    Args:
        task: The Task.
        case: The Case.
        error: The error that its cell ended with.
        outcomes: For each rank its Outcome.
        is_late: Whether the time was over.
        printed: What each rank printed.
    """
    raised = [outcome for outcome in outcomes.values() if outcome.kind == RAISED]
    if raised and all(BLANK in outcome.evalue for outcome in raised):
        what = f"{task.name} {BLANK}: the line that says so is still in it."
        if all(task.number not in outcome.evalue for outcome in raised):
            what = f"{task.name} calls an answer that is not there yet: {raised[0].evalue}."
        return wrong(task, "blank", [what])
    lines = [f"Tried with {case}.", *str(error).splitlines(), *printed_lines(printed)]
    if str(error).startswith("Deadlock"):
        return wrong(task, "deadlock", lines)
    if any(outcome.kind == DIED for outcome in outcomes.values()):
        return wrong(task, "died", lines)
    if raised:  # the others may have been freed only when the time was over
        errors = [f"{outcome.ename}: {outcome.evalue}" for outcome in raised]
        return wrong(task, task.name_raised(errors), lines)
    if is_late:
        return wrong(task, "late", ["It did not come to an end in time.", *lines])
    return wrong(task, "deadlock" if isinstance(error, RankDied) else "mismatch", lines)
