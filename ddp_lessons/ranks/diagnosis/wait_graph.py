"""
Who waits for whom, and whose fault it is: pure reasoning on what each rank says of itself.

A *place* is what `Guard.place` returns. A rank that finished its cell has a place too, with no
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


def diagnose(places, running, halts=None):
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
    halts = {r: h for r, h in (halts or {}).items() if r in running or places.get(r) is None}
    halted = sorted(halts.keys() & set(running))
    waits_for = {rank: _awaited(rank, places, running) for rank in running if rank not in halts}
    sentence, culprits = (
        first_mismatch(places, running)
        or _missing(places, running, waits_for, halts)
        or (halted and (_whereabouts(halted, places, halts), halted))
        or _circle(places, running, waits_for)
        or ("", ())
    )
    if sentence and all(waits(places[rank]) for rank in running):
        sentence += helpers_clause(places)
    table = stall_table(places, running, waits_for, halts)
    return Diagnosis(sentence, tuple(culprits), waits_for, table)


def is_deadlock(places, running, still_s=0.0):
    """
    Tell whether every running rank waits in vain: nobody is left who may act, and no limit is near.

    Args:
        places: For each rank that ran the cell, its place or None.
        running: The ranks that have not finished the cell.
        still_s: Seconds for which the cell has stood still.
    """
    return (
        bool(running)
        and not any(_may_be_helped(place) for place in places.values())
        and all(
            waits(places.get(rank))
            and (
                manual_joins.misses_its_limit(places[rank], still_s)
                or (
                    not _is_patient(rank, places, running)
                    and not _is_under_way(rank, places, running)
                )
            )
            for rank in running
        )
    )


def _may_be_helped(place):
    # Of a rank that did not answer by itself nobody knows what else runs in it.
    return place is None or place["helpers"] is None or bool(place["helpers"])


def _is_under_way(rank, places, running):
    # What all its ranks have called alike takes as long as its data needs: that is no deadlock.
    place = places[rank]
    if operation(place) in POINT_TO_POINT:
        senders_or_receivers = places if place["peer"] is None else (place["peer"],)
        return any(_have_met(rank, other, places) for other in senders_or_receivers)
    if place["call"] == STORE:
        return False
    if last_collective(place) is None and not place["forming"]:
        return place["call"] in COMPUTING  # autograd, before the first gradient is to be averaged
    return not _awaited(rank, places, running) and first_mismatch(places, running) is None


def _have_met(rank, other, places):
    place, partner = places[rank], places.get(other)
    return (
        waits(partner)
        and {operation(place), operation(partner)} == POINT_TO_POINT
        and partner["peer"] in (rank, None)
        and (place["tag"] == partner["tag"] or None in (place["tag"], partner["tag"]))
    )


def waits(place):
    """
    Tell whether a place is inside a communication call.
    """
    return bool(place and place["call"])


def is_busy_outside(place):
    """
    Tell whether a rank that was not asked to run the cell runs something else.
    """
    return bool(place and place.get("outside") and place["busy"])


def _is_patient(rank, places, running):
    place = places[rank]
    if place["call"] == JOIN and first_mismatch(places, running):
        return False  # its error would not say so
    if place["call"] == JOIN and place["function"] in manual_joins.CONNECTS_TO_A_STORE:
        awaited = _awaited(rank, places, running)
        return not any(_finished_in_no_group(other, places, running) for other in awaited)
    last = last_collective(place)
    limits = [place["timeout_s"], last["timeout_s"] if last else None]
    return any(limit is not None and limit < clocks.OWN_LIMIT_S for limit in limits)


def _finished_in_no_group(rank, places, running):
    place = places.get(rank)
    return place and rank not in running and not place.get("outside") and not place["groups"]


def _awaited(rank, places, running):
    place = places[rank]
    if not waits(place) or place["call"] == STORE:
        return ()
    if operation(place) in POINT_TO_POINT:
        return () if place["peer"] is None else (place["peer"],)
    others = [other for other in places if other != rank]
    last = last_collective(place)
    if place["forming"]:
        return tuple(
            o for o in place["forming"]["ranks"] if o != rank and not makes_alike(o, rank, places)
        )
    if place["call"] in FORMING or last is None:
        return tuple(
            o for o in others if not waits(places[o]) or places[o]["call"] != place["call"]
        )
    members = place["groups"].get(last["group"], list(places))
    return tuple(
        other for other in others if other in members and not calls_alike(other, rank, places)
    )


def _missing(places, running, waits_for, halts):
    """
    Find the ranks that are awaited and do not wait for a rank themselves.
    """
    awaited = {peer for peers in waits_for.values() for peer in peers}
    for state, words in _STATES.items():
        culprits = sorted(rank for rank in awaited if _state(rank, places, running, halts) == state)
        if not culprits:
            continue
        victims = [r for r, peers in waits_for.items() if set(peers) & set(culprits)]
        call = call_name(places[victims[0]])
        one = len(victims) == 1
        waiters = f"{rank_names(victims)} wait{'s' if one else ''}"
        line = places[victims[0]]["line"]
        where = f"in {call}" + (f" (line {line})" if line else "")
        if state == "finished":
            done = f"{rank_names(culprits)} finished the cell without {_partner(call)}"
            return f"{done}; {waiters} {where}", culprits
        them = "it" if len(culprits) == 1 else "them"
        there = words(culprits) if words else _whereabouts(culprits, places, halts)
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


def _state(rank, places, running, halts):
    if rank not in places:
        return "absent"
    if rank not in running and rank not in halts:
        return "outside" if (places[rank] or {}).get("outside") else "finished"
    place = places[rank]
    is_waiting = waits(place) and place["call"] != STORE and rank not in halts
    return "waits" if is_waiting else "elsewhere"


def _be(ranks, one="is"):
    many = {"is": "are", "was": "were"}
    return one if len(ranks) == 1 else many[one]


def _whereabouts(ranks, places, halts):
    """
    Return "rank 2 is at line 3: sleep(9); ranks 0 and 1 do not answer".
    """
    at = {}
    for rank in ranks:
        place = places.get(rank)
        if rank in halts:
            line = f" at line {place['line']}: {place['code']}" if place and place["line"] else ""
            spot = halts[rank] + line
        elif place is None:
            spot = ""
        elif place["line"]:
            wait = "waiting for a store's key " if place["call"] == STORE else ""
            spot = f"{wait}at line {place['line']}: {place['code']}"
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


def _circle(places, running, waits_for):
    """
    Find ranks that wait for one another, each in its own call, or for what nobody does.
    """
    waiting = [rank for rank in running if waits(places.get(rank))]
    if not waiting or len(waiting) != len(running):
        return None
    if {places[rank]["call"] for rank in waiting} == {JOIN}:
        return manual_joins.not_met(waiting, places[waiting[0]]["line"]), waiting
    operations = {operation(places[rank]) for rank in waiting}
    if len(operations) == 1 and operations <= set(_NEVER):
        where, other = _NEVER[operations.pop()]
        line = places[waiting[0]]["line"]
        all_wait = "waits" if len(waiting) == 1 else "all wait"
        yet = " yet" if helpers_clause(places) else ""
        at = f" (line {line})" if line else ""
        return f"{rank_names(waiting)} {all_wait} {where}{at}, and none {other}{yet}", waiting
    parts = [
        f"rank {rank} waits in {call_name(places[rank])}"
        + (f" for {rank_names(waits_for[rank])}" if waits_for[rank] else "")
        for rank in waiting
    ]
    return "; ".join(parts), waiting
