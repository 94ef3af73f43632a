"""
The line at which a rank died: from its crash log, or from its last snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ddp_lessons.ranks.diagnosis.native_stacks import parse_stacks
from ddp_lessons.ranks.rank.crash_log import CRASH, OWN_WILL
from ddp_lessons.ranks.supervisor.child_main import stack_file

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


def read_crash_log(folder: Path | str, rank: int) -> tuple[int | None, bool]:
    """
    Return the line at which a rank died, from its crash log.

    Args:
        folder: The runtime folder of the ranks.
        rank: The rank that died.

    Returns:
        (int or None, bool): Line of the cell, from 1, or None if the rank left no crash log;
        whether the rank ended itself.
    """
    try:
        text = stack_file(folder, rank).read_text(errors="replace")
    except OSError:
        return None, False
    begin, is_own_will = max((text.rfind(CRASH), False), (text.rfind(OWN_WILL), True))
    found = parse_stacks(text[begin:]) if begin >= 0 else None
    return (found[0] if found else None), begin >= 0 and is_own_will


def line_of_death(
    folder: Path | str,
    rank: int,
    snapshot: RankSnapshot | None,
    source_line: Callable[[int], str],
) -> PlaceOfDeath:
    """
    Return where a rank died: from its crash log, else from its last snapshot.

    Args:
        folder: The runtime folder of the ranks.
        rank: The rank that died.
        snapshot: The rank's last snapshot, or None.
        source_line: Function from a line number, from 1, to the text of that line of the cell.

    Returns:
        PlaceOfDeath: `line`, `code`, `is_last_seen` and `ended_itself` for an Outcome.
    """
    line, ended_itself = read_crash_log(folder, rank)
    if line is None and snapshot:
        seen = snapshot.line
        return {"line": seen, "code": snapshot.code, "is_last_seen": True, "ended_itself": False}
    code = source_line(line) if line else ""
    return {"line": line, "code": code, "is_last_seen": False, "ended_itself": ended_itself}
