"""
The line at which a rank died: from its crash log, or from its last snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

from ddp_lessons.ranks.diagnosis.native_stacks import parse_stacks
from ddp_lessons.ranks.messages.stack_files import CRASH, OWN_WILL

if TYPE_CHECKING:
    from ddp_lessons.ranks.messages.snapshot import RankSnapshot


class PlaceOfDeath(TypedDict):
    """
    The fields of an Outcome that say where a rank died.
    """

    line: int | None
    code: str
    is_last_seen: bool
    ended_itself: bool


def parse_crash_log(text: str) -> tuple[int | None, bool]:
    """
    Return the line at which a rank died, from its crash log.

    Args:
        text: All that the rank has written to its stack file; "" if it has no such file.

    Returns:
        (int or None, bool): Line of the cell, from 1, or None if the rank left no crash log;
        whether the rank ended itself.
    """
    begin, is_own_will = max((text.rfind(CRASH), False), (text.rfind(OWN_WILL), True))
    found = parse_stacks(text[begin:]) if begin >= 0 else None
    return (found[0] if found else None), begin >= 0 and is_own_will


def line_of_death(
    crash_log: str, snapshot: RankSnapshot | None, source_line: Callable[[int], str]
) -> PlaceOfDeath:
    """
    Return where a rank died: from its crash log, else from its last snapshot.

    Args:
        crash_log: All that the rank has written to its stack file; "" if it has no such file.
        snapshot: The rank's last snapshot, or None.
        source_line: Function from a line number, from 1, to the text of that line of the cell.

    Returns:
        PlaceOfDeath: `line`, `code`, `is_last_seen` and `ended_itself` for an Outcome.
    """
    line, ended_itself = parse_crash_log(crash_log)
    if line is None and snapshot:
        seen = snapshot.line
        return {"line": seen, "code": snapshot.code, "is_last_seen": True, "ended_itself": False}
    code = source_line(line) if line else ""
    return {"line": line, "code": code, "is_last_seen": False, "ended_itself": ended_itself}
