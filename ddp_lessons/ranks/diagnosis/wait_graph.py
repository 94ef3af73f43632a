"""
Who waits for whom, and whose fault it is: pure reasoning on what each rank says of itself.

A *place* is what `RankAgent.place` returns. A rank that finished its cell has a place too, with no
line; a rank that did not answer has None. A rank that was not asked to run the cell is `outside`.
"""

from dataclasses import dataclass

from ddp_lessons.ranks.diagnosis import manual_joins
from ddp_lessons.ranks.diagnosis.desync import calls_alike, first_mismatch, makes_alike
from ddp_lessons.ranks.diagnosis.wording import (
    COMPUTING,
    FORMING,
    JOIN,
    POINT_TO_POINT,
    STORE,
    call_name,
    helpers_clause,
    last_collective,
    operation,
    rank_names,
    stall_table,
)
from ddp_lessons.ranks.system import clocks


@dataclass(frozen=True)
class Diagnosis:
    """
    What holds a cell up.

    Args:
        sentence: One line that names the culprit; empty if nobody waits for anybody.
        culprits: The ranks that the others wait for.
        waits_for: For each waiting rank, the ranks it waits for.
        table: The stall table as text.
    """

    sentence: str
    culprits: tuple
    waits_for: dict
    table: str


def diagnose(snapshots, running, halts=None):
    """
    Say what holds a cell up.

    Args:
        places: For each rank that ran the cell, its place or None.
        running: The ranks that have not finished the cell.
        halts: For each rank that is halted, what halts it, in words. Default: none is.

    Returns:
        Diagnosis: With an empty sentence if no rank waits for another and none is halted.
    """
    # What a rank has said since it finished the cell is true of it, halted or not.
    halts = {r: h for r, h in (halts or {}).items() if r in running or snapshots.get(r) is None}
    halted = sorted(halts.keys() & set(running))
    waits_for = {rank: _awaited(rank, snapshots, running) for rank in running if rank not in halts}
    sentence, culprits = (
        first_mismatch(snapshots, running)
        or _missing(snapshots, running, waits_for, halts)
        or (halted and (_whereabouts(halted, snapshots, halts), halted))
        or _circle(snapshots, running, waits_for)
        or ("", ())
    )
    if sentence and all(waits(snapshots[rank]) for rank in running):
        sentence += helpers_clause(snapshots)
    table = stall_table(snapshots, running, waits_for, halts)
    return Diagnosis(sentence, tuple(culprits), waits_for, table)


def is_deadlock(snapshots, running, still_s=0.0):
    """
    Tell whether every running rank waits in vain: nobody is left who may act, and no limit is near.

    Args:
        places: For each rank that ran the cell, its place or None.
        running: The ranks that have not finished the cell.
        still_s: Seconds for which the cell has stood still.
    """
    return (
        bool(running)
        and not any(_may_be_helped(snapshot) for snapshot in snapshots.values())
        and all(
            waits(snapshots.get(rank))
            and (
                manual_joins.misses_its_limit(snapshots[rank], still_s)
                or (
                    not _is_patient(rank, snapshots, running)
                    and not _is_under_way(rank, snapshots, running)
                )
            )
            for rank in running
        )
    )


def _may_be_helped(snapshot):
    # Of a rank that did not answer by itself nobody knows what else runs in it.
    return snapshot is None or snapshot["helpers"] is None or bool(snapshot["helpers"])


def _is_under_way(rank, snapshots, running):
    # What all its ranks have called alike takes as long as its data needs: that is no deadlock.
    snapshot = snapshots[rank]
    if operation(snapshot) in POINT_TO_POINT:
        senders_or_receivers = snapshots if snapshot["peer"] is None else (snapshot["peer"],)
        return any(_have_met(rank, other, snapshots) for other in senders_or_receivers)
    if snapshot["call"] == STORE:
        return False
    if last_collective(snapshot) is None and not snapshot["forming"]:
        return (
            snapshot["call"] in COMPUTING
        )  # autograd, before the first gradient is to be averaged
    return not _awaited(rank, snapshots, running) and first_mismatch(snapshots, running) is None


def _have_met(rank, other, snapshots):
    snapshot, partner = snapshots[rank], snapshots.get(other)
    return (
        waits(partner)
        and {operation(snapshot), operation(partner)} == POINT_TO_POINT
        and partner["peer"] in (rank, None)
        and (snapshot["tag"] == partner["tag"] or None in (snapshot["tag"], partner["tag"]))
    )


def waits(snapshot):
    """
    Tell whether a place is inside a communication call.
    """
    return bool(snapshot and snapshot["call"])


def is_busy_outside(snapshot):
    """
    Tell whether a rank that was not asked to run the cell runs something else.
    """
    return bool(snapshot and snapshot.get("outside") and snapshot["busy"])


def _is_patient(rank, snapshots, running):
    snapshot = snapshots[rank]
    if snapshot["call"] == JOIN and first_mismatch(snapshots, running):
        return False  # its error would not say so
    if snapshot["call"] == JOIN and snapshot["function"] in manual_joins.CONNECTS_TO_A_STORE:
        awaited = _awaited(rank, snapshots, running)
        return not any(_finished_in_no_group(other, snapshots, running) for other in awaited)
    last = last_collective(snapshot)
    limits = [snapshot["timeout_s"], last["timeout_s"] if last else None]
    return any(limit is not None and limit < clocks.OWN_LIMIT_S for limit in limits)


def _finished_in_no_group(rank, snapshots, running):
    snapshot = snapshots.get(rank)
    return (
        snapshot and rank not in running and not snapshot.get("outside") and not snapshot["groups"]
    )


def _awaited(rank, snapshots, running):
    snapshot = snapshots[rank]
    if not waits(snapshot) or snapshot["call"] == STORE:
        return ()
    if operation(snapshot) in POINT_TO_POINT:
        return () if snapshot["peer"] is None else (snapshot["peer"],)
    others = [other for other in snapshots if other != rank]
    last = last_collective(snapshot)
    if snapshot["forming"]:
        return tuple(
            o
            for o in snapshot["forming"]["ranks"]
            if o != rank and not makes_alike(o, rank, snapshots)
        )
    if snapshot["call"] in FORMING or last is None:
        return tuple(
            o for o in others if not waits(snapshots[o]) or snapshots[o]["call"] != snapshot["call"]
        )
    members = snapshot["groups"].get(last["group"], list(snapshots))
    return tuple(
        other for other in others if other in members and not calls_alike(other, rank, snapshots)
    )


def _missing(snapshots, running, waits_for, halts):
    """
    Find the ranks that are awaited and do not wait for a rank themselves.
    """
    awaited = {peer for peers in waits_for.values() for peer in peers}
    for state, words in _STATES.items():
        culprits = sorted(
            rank for rank in awaited if _state(rank, snapshots, running, halts) == state
        )
        if not culprits:
            continue
        victims = [r for r, peers in waits_for.items() if set(peers) & set(culprits)]
        call = call_name(snapshots[victims[0]])
        one = len(victims) == 1
        waiters = f"{rank_names(victims)} wait{'s' if one else ''}"
        line = snapshots[victims[0]]["line"]
        where = f"in {call}" + (f" (line {line})" if line else "")
        if state == "finished":
            done = f"{rank_names(culprits)} finished the cell without {_partner(call)}"
            return f"{done}; {waiters} {where}", culprits
        them = "it" if len(culprits) == 1 else "them"
        there = words(culprits) if words else _whereabouts(culprits, snapshots, halts)
        return f"{there}; {waiters} for {them} {where}", culprits
    return None


_STATES = {
    "absent": lambda ranks: f"there {_be(ranks)} no {rank_names(ranks)}",
    "outside": lambda ranks: f"{rank_names(ranks)} {_be(ranks, 'was')} not asked to run this cell",
    "finished": None,
    "elsewhere": None,
}
"""
How a rank fails to come, with the words for those that have some of their own.
"""


def _state(rank, snapshots, running, halts):
    if rank not in snapshots:
        return "absent"
    if rank not in running and rank not in halts:
        return "outside" if (snapshots[rank] or {}).get("outside") else "finished"
    snapshot = snapshots[rank]
    is_waiting = waits(snapshot) and snapshot["call"] != STORE and rank not in halts
    return "waits" if is_waiting else "elsewhere"


def _be(ranks, one="is"):
    many = {"is": "are", "was": "were"}
    return one if len(ranks) == 1 else many[one]


def _whereabouts(ranks, snapshots, halts):
    """
    Return "rank 2 is at line 3: sleep(9); ranks 0 and 1 do not answer".
    """
    at = {}
    for rank in ranks:
        snapshot = snapshots.get(rank)
        if rank in halts:
            line = (
                f" at line {snapshot['line']}: {snapshot['code']}"
                if snapshot and snapshot["line"]
                else ""
            )
            spot = halts[rank] + line
        elif snapshot is None:
            spot = ""
        elif snapshot["line"]:
            wait = "waiting for a store's key " if snapshot["call"] == STORE else ""
            spot = f"{wait}at line {snapshot['line']}: {snapshot['code']}"
        else:
            spot = "not in the cell"
        at.setdefault(spot, []).append(rank)
    parts = []
    for spot, those in at.items():
        do = "does" if len(those) == 1 else "do"
        parts.append(
            f"{rank_names(those)} {f'{_be(those)} {spot}' if spot else f'{do} not answer'}"
        )
    return "; ".join(parts)


def _partner(call):
    return {"send": "a recv", "recv": "a send"}.get(call, call)


_NEVER = {
    "recv": ("in recv", "sends"),
    "send": ("in send", "receives"),
    STORE: ("for a store's key", "sets it"),
}


def _circle(snapshots, running, waits_for):
    """
    Find ranks that wait for one another, each in its own call, or for what nobody does.
    """
    waiting = [rank for rank in running if waits(snapshots.get(rank))]
    if not waiting or len(waiting) != len(running):
        return None
    if {snapshots[rank]["call"] for rank in waiting} == {JOIN}:
        return manual_joins.not_met(waiting, snapshots[waiting[0]]["line"]), waiting
    operations = {operation(snapshots[rank]) for rank in waiting}
    if len(operations) == 1 and operations <= set(_NEVER):
        where, other = _NEVER[operations.pop()]
        line = snapshots[waiting[0]]["line"]
        all_wait = "waits" if len(waiting) == 1 else "all wait"
        yet = " yet" if helpers_clause(snapshots) else ""
        at = f" (line {line})" if line else ""
        return f"{rank_names(waiting)} {all_wait} {where}{at}, and none {other}{yet}", waiting
    parts = [
        f"rank {rank} waits in {call_name(snapshots[rank])}"
        + (f" for {rank_names(waits_for[rank])}" if waits_for[rank] else "")
        for rank in waiting
    ]
    return "; ".join(parts), waiting
