"""
Ranks that join the group of all ranks by hand: the one call of which torch's limit may not hold.

Pure reasoning on places; see `waiting`.
"""

from ddp_lessons.ranks.diagnosis.wording import JOIN, rank_names
from ddp_lessons.ranks.system import clocks

CONNECTS_TO_A_STORE = ("_create_c10d_store", "_tcp_rendezvous_handler")
"""
Functions of torch's in which its limit does not hold where something else answers at that port.
"""


def misses_its_limit(snapshot, still_s):
    """
    Tell whether a rank joins, and its own limit should have ended that seconds ago.

    Args:
        place: Where it is, in a call.
        still_s: Seconds for which the cell has stood still.
    """
    limit_s = snapshot["timeout_s"]
    is_join = snapshot["call"] == JOIN and limit_s is not None
    return is_join and still_s > limit_s + clocks.JOIN_LATE_S


def short_joins(snapshots):
    """
    Return {rank: seconds} for ranks whose join has a limit that is soon over, and that ends it.

    torch connects again and again until then: a rank in that loop hears of nothing else.
    """
    limits = {
        r: snapshot["timeout_s"]
        for r, snapshot in snapshots.items()
        if snapshot and snapshot["call"] == JOIN
    }
    return {
        rank: limit_s + clocks.JOIN_LAST_TRY_S
        for rank, limit_s in limits.items()
        if limit_s is not None and limit_s <= clocks.JOIN_LATE_S
    }


def not_met(ranks, line):
    """
    Say that ranks join and do not find the others.

    Args:
        ranks: The ranks, all that run the cell.
        line: The line of the first of them, or None.
    """
    at = f" (line {line})" if line else ""
    wait, have = ("waits", "has") if len(ranks) == 1 else ("wait", "have")
    return (
        f"{rank_names(ranks)} {wait} in {JOIN}{at} and {have} not met all others: check the "
        "address, the port and the world size"
    )
