"""
Who waits for whom, and whose fault it is: pure reasoning on what each rank says of itself.

A *place* is what `Guard.place` returns. A rank that finished its cell has a place too, with no
line; a rank that did not answer has None.
"""

import math
from dataclasses import dataclass

from ddp_lessons.ranks.telling import (
    FORMING,
    POINT_TO_POINT,
    call_name,
    last_collective,
    rank_names,
    stall_table,
)

COMPARED_SIZES = {"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor"}
"""
Collectives to which every rank must bring as many elements.
"""
_PATIENCE_S = 60.0


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


def diagnose(places, running):
    """
    Say what holds a cell up.

    Args:
        places: For each rank that ran the cell, its place or None.
        running: The ranks that have not finished the cell.

    Returns:
        Diagnosis: With an empty sentence if no rank waits for another.
    """
    waits_for = {rank: _awaited(rank, places, running) for rank in running}
    sentence, culprits = (
        _mismatch(places)
        or _missing(places, running, waits_for)
        or _circle(places, running, waits_for)
        or ("", ())
    )
    return Diagnosis(sentence, tuple(culprits), waits_for, stall_table(places, running, waits_for))


def is_deadlock(places, running):
    """
    Tell whether every running rank waits in vain, with no time limit of its own near.
    """
    return bool(running) and all(
        waits(places.get(rank))
        and not _is_patient(places[rank])
        and not _is_under_way(rank, places, running)
        for rank in running
    )


def _is_under_way(rank, places, running):
    # What all its ranks have called alike takes as long as its data needs: that is no deadlock.
    place = places[rank]
    if place["call"] in POINT_TO_POINT:
        peer = places.get(place["peer"])
        return (
            waits(peer)
            and {place["call"], peer["call"]} == POINT_TO_POINT
            and (peer["peer"] in (rank, None))
        )
    if place["call"] in FORMING or last_collective(place) is None:
        return False
    return not _awaited(rank, places, running) and _mismatch(places) is None


def waits(place):
    """
    Tell whether a place is inside a communication call.
    """
    return bool(place and place["call"])


def _is_patient(place):
    last = last_collective(place)
    limits = [place["timeout_s"], last["timeout_s"] if last else None]
    return any(limit is not None and limit < _PATIENCE_S for limit in limits)


def _find(place, collective):
    for other in place["collectives"] if place else ():
        if (other["group"], other["number"]) == (collective["group"], collective["number"]):
            return other
    return None


def _awaited(rank, places, running):
    place = places[rank]
    if not waits(place):
        return ()
    if place["call"] in POINT_TO_POINT:
        return () if place["peer"] is None else (place["peer"],)
    others = [other for other in places if other != rank]
    last = last_collective(place)
    if place["call"] in FORMING or last is None:
        return tuple(
            o for o in others if not waits(places[o]) or places[o]["call"] != place["call"]
        )
    members = place["groups"].get(last["group"], list(places))
    return tuple(
        other
        for other in others
        if other in members and (other not in places or _find(places[other], last) is None)
    )


def _describe(collective):
    sizes = ", ".join(
        f"{dtype.lower()}{size}"
        for dtype, size in zip(collective["dtypes"], collective["sizes"], strict=False)
    )
    return f"{collective['name']} {sizes}".strip()


def _signature(collective):
    if collective["name"] not in COMPARED_SIZES:
        return collective["name"]
    # Elements are what goes over the wire: torch reduces a [6] and a [2, 3] rightly.
    counts = [math.prod(size) for size in collective["sizes"]]
    return repr((collective["name"], counts, collective["dtypes"]))


def _mismatch(places):
    """
    Find the first collective that ranks of one group called in different ways.
    """
    numbers = {
        (collective["record"], collective["group"], collective["number"])
        for place in places.values()
        if place
        for collective in place["collectives"]
    }
    for _, group, number in sorted(numbers):
        calls = {}
        for rank, place in places.items():
            found = _find(place, {"group": group, "number": number})
            if found is not None:
                calls.setdefault(_signature(found), []).append((rank, found))
        if len(calls) > 1:
            fewest = sorted(calls.values(), key=lambda those: (len(those), -those[0][0]))
            parts = [
                f"{rank_names([rank for rank, _ in those])} called {_describe(those[0][1])}"
                for those in fewest
            ]
            sentence = f"{parts[0]} as collective {number}, where {', '.join(parts[1:])}"
            return sentence, [rank for rank, _ in fewest[0]]
    return None


def _missing(places, running, waits_for):
    """
    Find the ranks that are awaited and do not wait themselves.
    """
    awaited = {peer for peers in waits_for.values() for peer in peers}
    for state in ("finished", "elsewhere"):
        culprits = sorted(
            rank
            for rank in awaited
            if (rank not in running) == (state == "finished") and not waits(places.get(rank))
        )
        if not culprits:
            continue
        victims = [r for r, peers in waits_for.items() if set(peers) & set(culprits)]
        call = call_name(places[victims[0]])
        waiters = f"{rank_names(victims)} wait{'s' if len(victims) == 1 else ''}"
        line = places[victims[0]]["line"]
        where = f"in {call}" + (f" (line {line})" if line else "")
        if state == "finished":
            done = f"{rank_names(culprits)} finished the cell without {_partner(call)}"
            return f"{done}; {waiters} {where}", culprits
        them = "it" if len(culprits) == 1 else "them"
        return f"{_whereabouts(culprits, places)}; {waiters} for {them} {where}", culprits
    return None


def _whereabouts(ranks, places):
    """
    Return "rank 2 is at line 3: sleep(9); ranks 0 and 1 do not answer".
    """
    at = {}
    for rank in ranks:
        place = places.get(rank)
        if place is None:
            spot = ""
        elif place["line"]:
            spot = f"at line {place['line']}: {place['code']}"
        else:
            spot = "not in the cell"
        at.setdefault(spot, []).append(rank)
    parts = []
    for spot, those in at.items():
        be, do = ("is", "does") if len(those) == 1 else ("are", "do")
        parts.append(f"{rank_names(those)} {f'{be} {spot}' if spot else f'{do} not answer'}")
    return "; ".join(parts)


def _partner(call):
    return {"send": "a recv", "recv": "a send"}.get(call, call)


def _circle(places, running, waits_for):
    """
    Find ranks that wait for one another, each in its own call.
    """
    waiting = [rank for rank in running if waits(places.get(rank))]
    if not waiting or len(waiting) != len(running):
        return None
    calls = {places[rank]["call"] for rank in waiting}
    if len(calls) == 1 and calls <= POINT_TO_POINT:
        call = calls.pop()
        other = "sends" if call == "recv" else "receives"
        line = places[waiting[0]]["line"]
        return f"{rank_names(waiting)} all wait in {call} (line {line}), and none {other}", waiting
    parts = [
        f"rank {rank} waits in {call_name(places[rank])}"
        + (f" for {rank_names(waits_for[rank])}" if waits_for[rank] else "")
        for rank in waiting
    ]
    return "; ".join(parts), waiting
