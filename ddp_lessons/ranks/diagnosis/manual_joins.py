"""
Joins that a cell makes itself by `init_process_group`, the one call that may exceed its time limit.

All functions here are pure. The module `wait_graph` calls them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ddp_lessons.ranks.diagnosis.wording import JOIN, rank_names
from ddp_lessons.ranks.system import clocks

if TYPE_CHECKING:
    from ddp_lessons.ranks.messages.snapshot import RankSnapshot


def misses_its_limit(snapshot: RankSnapshot, still_s: float) -> bool:
    """
    Return whether a rank is in a join that should have reached its own time limit seconds ago.

    Args:
        snapshot: The rank's snapshot.
        still_s: Seconds for which the cell has stood still.
    """
    limit_s = snapshot.timeout_s
    is_join = snapshot.call == JOIN and limit_s is not None
    return is_join and still_s > limit_s + clocks.JOIN_LATE_S  # type: ignore[operator]  # a join


def short_joins(snapshots: Mapping[int, RankSnapshot | None]) -> dict[int, float]:
    """
    Return {rank: seconds until the join ends} for ranks whose join has a short time limit.

    torch tries to connect again and again until the limit. A rank in that loop cannot be released.
    """
    limits = {
        r: snapshot.timeout_s
        for r, snapshot in snapshots.items()
        if snapshot and snapshot.call == JOIN
    }
    return {
        rank: limit_s + clocks.JOIN_LAST_TRY_S
        for rank, limit_s in limits.items()
        if limit_s is not None and limit_s <= clocks.JOIN_LATE_S
    }


def not_met(ranks: Collection[int], line: int | None) -> str:
    """
    Return the sentence about ranks that join and do not find the others.

    Args:
        ranks: All ranks that run the cell.
        line: Line of the cell at which the first of these ranks is, or None.
    """
    at = f" (line {line})" if line else ""
    wait, have = ("waits", "has") if len(ranks) == 1 else ("wait", "have")
    return (
        f"{rank_names(ranks)} {wait} in {JOIN}{at} and {have} not met all others: check the "
        "address, the port and the world size"
    )
