"""
The message about a failed cell: pure functions from outcomes to text.

The first line names the culprit and its line. The collateral ranks share one sentence below it.
"""

import re
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ddp_lessons.ranks.diagnosis.wording import rank_names
from ddp_lessons.ranks.messages.outcome import DIED, GIVEN_UP, RAISED, RELEASED, Outcome
from ddp_lessons.ranks.system import clocks


def _at(outcome: Outcome) -> str:
    return f" at line {outcome.line}: {outcome.code}" if outcome.line else ""


def how_it_died(exit_code: int | None, ended_itself: bool = False) -> str:
    """
    Return words for how a process ended.

    Args:
        exit_code: Its exit code, or minus the signal; None if not known.
        ended_itself: Whether the process ended itself.
    """
    if exit_code is None:
        return "its process has ended"
    if exit_code < 0:
        number = -exit_code
        known = number in set(signal.Signals)  # not all of the real-time signals have a name
        name = signal.Signals(number).name if known else f"signal {number}"
        is_riddle = name == "SIGKILL" and not ended_itself
        hint = " (Linux or a hub does this when memory runs out)" if is_riddle else ""
        return f"its process was ended by {name}{hint}"
    return f"its process exited with code {exit_code}"


def raised_message(outcomes: Mapping[int, Outcome]) -> tuple[str, list[str]]:
    """
    Return the message about ranks that raised. Its first line names the lowest of these ranks.

    Returns:
        (str, list[str]): The message, and the lines of the lowest raising rank's traceback.
    """
    raised = {rank: outcome for rank, outcome in outcomes.items() if outcome.kind == RAISED}
    same: dict[tuple[str, str, int | None], list[int]] = {}
    for rank, outcome in sorted(raised.items()):  # by rank, not in the order of the replies
        same.setdefault((outcome.ename, outcome.evalue, outcome.line), []).append(rank)
    lines = []
    for ranks in same.values():
        outcome = raised[ranks[0]]
        text = f"{outcome.ename}: {outcome.evalue}".rstrip(": ")
        lines.append(f"{rank_names(ranks)} raised {text}{_at(outcome)}")
    first = raised[min(raised)]
    # Drop the rank's own prompt number: the learner sees another number beside the cell.
    traceback = re.sub(r"Cell In\[\d+\], line", "Cell, line", first.traceback)
    return "\n".join(lines), traceback.splitlines()


def died_message(outcomes: Mapping[int, Outcome]) -> str:
    """
    Return the message about ranks that died, a line for each.
    """
    lines = []
    for rank, outcome in sorted(outcomes.items()):
        if outcome.kind == DIED:
            seen = "; last seen" if outcome.is_last_seen and outcome.line else ""
            lines.append(f"{outcome.named(rank)} {_how_it_was_lost(outcome)}{seen}{_at(outcome)}")
    return "\n".join(lines)


def _how_it_was_lost(outcome: Outcome) -> str:
    if outcome.silent:
        silent_s = clocks.ELSEWHERE_MISSES * clocks.HEARTBEAT_EVERY_MS / 1000
        return f"is lost: {outcome.silent} has not answered for {silent_s:.0f} s"
    return f"died: {how_it_died(outcome.exit_code, outcome.ended_itself)}"


def given_up_message(outcomes: Mapping[int, Outcome]) -> str:
    """
    Return the message about ranks that were ended as they could not be released; "" without any.
    """
    return "\n".join(
        f"{outcome.named(rank)} {_why_given_up(outcome)}, so its process was ended"
        for rank, outcome in sorted(outcomes.items())
        if outcome.kind == GIVEN_UP
    )


def _why_given_up(outcome: Outcome) -> str:
    if outcome.halt:
        limit_s = f"{clocks.FREE_HALTED_S:.0f} s"
        return f"was {outcome.halt}{_at(outcome)} and did not go on within {limit_s}"
    return f"could not be released{_at(outcome)}"


def released_sentence(outcomes: Mapping[int, Outcome]) -> str:
    """
    Return one sentence about the ranks that were released; "" if there are none.
    """
    released = [rank for rank, outcome in outcomes.items() if outcome.kind == RELEASED]
    if not released:
        return ""
    lines = {outcomes[rank].line for rank in released if outcomes[rank].line}
    where = f" at line {lines.pop()}" if len(lines) == 1 else ""
    were = "was" if len(released) == 1 else "were"
    return f"{rank_names(released)} {were} released{where}; variables are kept."


def stale_sentence(names: Collection[str]) -> str:
    """
    Return one sentence about objects that hold a group that is gone; "" if there are none.

    Args:
        names: Names of these objects.
    """
    if not names:
        return ""
    listed = ", ".join(f"`{name}`" for name in names)
    verb, again = ("holds", "it") if len(names) == 1 else ("hold", "them")
    return f"{listed} {verb} the old group: run the cell that makes {again} again."


@dataclass(frozen=True)
class Recovery:
    """
    The steps that were taken to make ranks usable again.

    Args:
        replaced: Ranks that have new processes.
        regrouped: Whether the ranks have left their old groups.
        joined: Whether all ranks are in a new group.
        stale: Names of objects that hold an old group.
    """

    replaced: list[int]
    regrouped: bool
    joined: bool
    stale: list[str]

    def sentences(self) -> list[str]:
        """
        Return the message about these steps as a list of lines.
        """
        lines = [replaced_sentence(self.replaced)]
        if self.regrouped:
            fate = (
                "The ranks have joined a new group."
                if self.joined
                else "The group is gone: run the cell that makes it again."
            )
            lines.append(f"{fate} {stale_sentence(self.stale)}".rstrip())
        return [line for line in lines if line]


def replaced_sentence(replaced: Collection[int]) -> str:
    """
    Return one sentence about ranks that were replaced and have lost their variables.

    Return "" if `replaced` is empty.
    """
    if not replaced:
        return ""
    new = "A new" if len(replaced) == 1 else "New"
    verb = "is" if len(replaced) == 1 else "are"
    its = "its" if len(replaced) == 1 else "their"
    return f"{new} {rank_names(replaced)} {verb} in place; {its} variables are gone."
