"""
Words for ranks, their calls and their lines, in the sentence and the table of a diagnosis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp_lessons.ranks.messages.snapshot import Collective, RankSnapshot, Snapshots

POINT_TO_POINT = {"send", "recv"}
STORE = "store"
COMPUTING = {"backward", "DDP forward"}
"""
Calls that compute, and wait for collectives that they start themselves.
"""
INDIRECT = {*COMPUTING, "wait"}
JOIN = "init_process_group"
FORMING = {JOIN, "new_group", "new_subgroups", "split_group"}
POLLING = {*FORMING, STORE}
"""
Calls that wait for a store. The store may be a file, which torch polls.
"""


def rank_names(ranks: Iterable[int]) -> str:
    """
    Return "rank 2", "ranks 0 and 1", "ranks 0, 1 and 3" or "ranks 0-3".
    """
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def last_collective(snapshot: RankSnapshot | None) -> Collective | None:
    """
    Return the last collective that a rank has called in its cell, or None.
    """
    return snapshot.collectives[-1] if snapshot and snapshot.collectives else None


def operation(snapshot: RankSnapshot) -> str:
    """
    Return the kind of a rank's call: "recv" also for a wait for an irecv's handle, else the call.
    """
    return snapshot.operation or snapshot.call


def call_name(snapshot: RankSnapshot) -> str:
    """
    Return the name of a rank's call, with its number in its group: "all_reduce 3".
    """
    call, last = snapshot.call, last_collective(snapshot)
    if snapshot.operation:
        begun = f"i{snapshot.operation}"
        return call if call == begun else f"{begun} in {call}"
    if call == STORE:
        return call
    if call in POINT_TO_POINT or call in FORMING or last is None:
        return call
    if call in INDIRECT or call == last.name:
        within = f" in {call}" if call in INDIRECT else ""
        return f"{last.name} {last.number}{within}"
    return call


def helpers_clause(snapshots: Snapshots) -> str:
    """
    Return "; rank 0 has a thread that may still act", for the end of a sentence, or "".
    """
    owners: dict[str, list[int]] = {}
    for rank, snapshot in snapshots.items():
        for helper in (snapshot and snapshot.helpers) or ():
            owners.setdefault(helper, []).append(rank)
    clauses = ""
    for helper, ranks in owners.items():
        have = "has" if len(ranks) == 1 else "have"
        clauses += f"; {rank_names(ranks)} {have} a {helper} that may still act"
    return clauses


def stall_table(
    snapshots: Snapshots,
    running: Collection[int],
    waits_for: Mapping[int, Collection[int]],
    halts: Mapping[int, str],
) -> str:
    """
    Return the stall table as text: each rank, its line, its call, and the ranks it waits for.

    Args:
        snapshots: For each rank of the cell its snapshot or None.
        running: The ranks that have not finished the cell.
        waits_for: For each running rank that is not halted, the ranks it waits for.
        halts: For each halted rank that runs the cell or does not answer, words for what halts it.
    """
    rows = [("rank", "line", "in", "waits for")]
    hosts = {
        rank: snapshot.host for rank, snapshot in snapshots.items() if snapshot and snapshot.host
    }
    names = {rank: f"{rank} on {hosts[rank]}" if rank in hosts else str(rank) for rank in snapshots}
    awaited = {peer for peers in waits_for.values() for peer in peers}
    for rank in sorted(snapshots):
        snapshot = snapshots[rank]
        if rank not in running and snapshot and snapshot.outside:
            if rank in awaited:
                rows.append((names[rank], "not in this cell", "-", "-"))
        elif rank not in running and rank not in halts:
            last = last_collective(snapshot)
            done = f"last: {last.name} {last.number}" if last else "-"
            rows.append((names[rank], "finished", done, "-"))
        elif snapshot is None:
            rows.append((names[rank], "?", halts.get(rank, "does not answer"), "?"))
        elif rank in halts:
            rows.append((names[rank], _line(snapshot), halts[rank], "-"))
        else:
            call = call_name(snapshot) if snapshot.call else "no communication"
            if snapshot.module:
                call += f" at {snapshot.module}"
            peers = ", ".join(map(str, waits_for[rank])) or "-"
            rows.append((names[rank], _line(snapshot), call, peers))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _line(snapshot: RankSnapshot) -> str:
    return f"{snapshot.line}: {snapshot.code}" if snapshot.line else snapshot.function
