"""
What ranks of one group called in different ways: another group, another collective, another root.

Pure reasoning on places; see `diagnosis`. Each function returns (sentence, culprits) or None.
"""

import math

from ddp_lessons.ranks.diagnosis.wording import last_collective, rank_names

COMPARED_SIZES = {"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor"}
"""
Collectives to which every rank must bring as many elements.
"""
_TO_THE_ROOT = {"reduce", "gather", "gather_object"}


def first_mismatch(places, running):
    """
    Find the first thing that ranks did in different ways. One mistake shifts all that comes after.

    Args:
        places: For each rank its place or None.
        running: The ranks that have not finished the cell.
    """
    return (
        _other_counts(places, running)
        or _clashing_groups(places, running)
        or _other_collectives(places)
        or _other_roots(places, running)
    )


def find_collective(place, collective):
    """
    Return what a rank called as the collective of the same group and number, or None.
    """
    for other in place["collectives"] if place else ():
        if _key(other) == _key(collective):
            return other
    return None


def _key(collective):
    return collective["group"], collective["number"]


def calls_alike(other, rank, places):
    """
    Tell whether another rank calls, or has called, what a rank calls: as the same collective of
    their group, and with the same root.
    """
    last, place = last_collective(places[rank]), places.get(other)
    found = find_collective(place, last)
    if found is None or _signature(found) != _signature(last):
        return False
    is_in_it = _key(last_collective(place)) == _key(last)
    roots = {each["root"] for each in (places[rank], place)}
    return not is_in_it or None in roots or len(roots) == 1


def makes_alike(other, rank, places):
    """
    Tell whether another rank makes, or has made, the group that a rank makes.
    """
    forming = places[rank]["forming"]
    counts = {_count_among_all(places.get(each), places) for each in (rank, other)}
    return members_of(places.get(other), forming["name"]) == forming["ranks"] and (
        None in counts or len(counts) == 1
    )


def _count_among_all(place, places):
    """
    Return under which number a rank joins the group of all ranks; None if it joins no such group.
    """
    forming = place and place["forming"]
    is_of_all = forming and forming["ranks"] == sorted(places)  # others may be worlds apart
    return forming.get("count") if is_of_all else None


def _other_counts(places, running):
    """
    Find ranks that join the group of all ranks under different numbers.

    torch counts the groups that a rank has begun to make, and ranks that count differently look for
    each other under different keys of the store.
    """
    counts = {}
    for rank in running:
        count = _count_among_all(places[rank], places)
        if count:
            counts.setdefault(count, []).append(rank)
    if len(counts) < 2:
        return None
    fewest = _fewest_first(counts)
    parts = [
        f"{rank_names(ranks)} {'joins' if len(ranks) == 1 else 'join'} as group {count}"
        for count, ranks in fewest
    ]
    sentence = (
        f"{parts[0]}, where {', '.join(parts[1:])}: an init_process_group that failed counts too, "
        "and ranks meet only under the same number"
    )
    return sentence, fewest[0][1]


def _fewest_first(versions):
    """
    Return (version, ranks) in the order in which they are told: those of the fewest ranks first.
    """
    return sorted(versions.items(), key=lambda each: (len(each[1]), -each[1][0]))


def _clashing_groups(places, running):
    """
    Find a group that is waited in, under whose name ranks understand different members.

    torch numbers groups as it makes them, on each rank by itself.
    """
    for rank in running:
        for name in _groups_waited_in(places[rank]):
            versions = {}
            for each, place in places.items():
                members = members_of(place, name)
                if members:
                    versions.setdefault(tuple(members), []).append(each)
            if len(versions) > 1:
                fewest = _fewest_first(versions)
                parts = [
                    f"{rank_names(ranks)} {'makes' if len(ranks) == 1 else 'make'} "
                    f"{f'group {name}' if i == 0 else 'it'} of {rank_names(members)}"
                    for i, (members, ranks) in enumerate(fewest)
                ]
                sentence = (
                    f"{parts[0]}, where {', '.join(parts[1:])}: torch numbers groups as a rank "
                    "makes them, so every rank must make every group, in the same order"
                )
                return sentence, fewest[0][1]
    return None


def _groups_waited_in(place):
    if place is None:
        return []
    last = last_collective(place)
    forming = [place["forming"]["name"]] if place["forming"] else []
    return forming + ([last["group"]] if last and not forming else [])


def members_of(place, name):
    """
    Return the ranks of which a rank makes, or has made, the group of that name; or None.
    """
    if place is None:
        return None
    if place["forming"] and place["forming"]["name"] == name:
        return place["forming"]["ranks"]
    return place["groups"].get(name)


def _other_collectives(places):
    numbers = {
        (collective["record"], collective["group"], collective["number"])
        for place in places.values()
        if place
        for collective in place["collectives"]
    }
    for _, group, number in sorted(numbers):
        calls = {}
        for rank, place in places.items():
            found = find_collective(place, {"group": group, "number": number})
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


def _other_roots(places, running):
    """
    Find a collective that ranks wait in with different roots.
    """
    calls = {}
    for rank in running:
        place, last = places[rank], last_collective(places[rank])
        if last and place["root"] is not None:
            roots = calls.setdefault(_key(last), {})
            roots.setdefault(place["root"], []).append(rank)
    for (_, number), roots in sorted(calls.items()):
        if len(roots) < 2:
            continue
        whose = f"as collective {number}"
        if all(ranks == [root] for root, ranks in roots.items()):
            place = places[min(roots)]
            call = _describe(last_collective(place))
            own = f"each {_way(place)} itself"
            return f"{rank_names(roots)} called {call} {whose}, {own}", sorted(roots)
        # A root that has finished was of its own opinion: it speaks for its side, too.
        sides = sorted(
            roots.items(),
            key=lambda side: (len({*side[1], *({side[0]} - set(running))}), -side[1][0]),
        )
        parts = [
            f"{rank_names(ranks)} called {_describe(last_collective(places[ranks[0]]))} "
            f"{_way(places[ranks[0]])} rank {root}"
            for root, ranks in sides
        ]
        return f"{parts[0]} {whose}, where {', '.join(parts[1:])}", sides[0][1]
    return None


def _way(place):
    return "to" if place["call"] in _TO_THE_ROOT else "from"
