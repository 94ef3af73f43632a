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


def first_mismatch(snapshots, running):
    """
    Find the first thing that ranks did in different ways. One mistake shifts all that comes after.

    Args:
        places: For each rank its place or None.
        running: The ranks that have not finished the cell.
    """
    return (
        _other_counts(snapshots, running)
        or _clashing_groups(snapshots, running)
        or _other_collectives(snapshots)
        or _other_roots(snapshots, running)
    )


def find_collective(snapshot, collective):
    """
    Return what a rank called as the collective of the same group and number, or None.
    """
    for other in snapshot["collectives"] if snapshot else ():
        if _key(other) == _key(collective):
            return other
    return None


def _key(collective):
    return collective["group"], collective["number"]


def calls_alike(other, rank, snapshots):
    """
    Tell whether another rank calls, or has called, what a rank calls: as the same collective of
    their group, and with the same root.
    """
    last, snapshot = last_collective(snapshots[rank]), snapshots.get(other)
    found = find_collective(snapshot, last)
    if found is None or _signature(found) != _signature(last):
        return False
    is_in_it = _key(last_collective(snapshot)) == _key(last)
    roots = {each["root"] for each in (snapshots[rank], snapshot)}
    return not is_in_it or None in roots or len(roots) == 1


def makes_alike(other, rank, snapshots):
    """
    Tell whether another rank makes, or has made, the group that a rank makes.
    """
    forming = snapshots[rank]["forming"]
    counts = {_count_among_all(snapshots.get(each), snapshots) for each in (rank, other)}
    return members_of(snapshots.get(other), forming["name"]) == forming["ranks"] and (
        None in counts or len(counts) == 1
    )


def _count_among_all(snapshot, snapshots):
    """
    Return under which number a rank joins the group of all ranks; None if it joins no such group.
    """
    forming = snapshot and snapshot["forming"]
    is_of_all = forming and forming["ranks"] == sorted(snapshots)  # others may be worlds apart
    return forming.get("count") if is_of_all else None


def _other_counts(snapshots, running):
    """
    Find ranks that join the group of all ranks under different numbers.

    torch counts the groups that a rank has begun to make, and ranks that count differently look for
    each other under different keys of the store.
    """
    counts = {}
    for rank in running:
        count = _count_among_all(snapshots[rank], snapshots)
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


def _clashing_groups(snapshots, running):
    """
    Find a group that is waited in, under whose name ranks understand different members.

    torch numbers groups as it makes them, on each rank by itself.
    """
    for rank in running:
        for name in _groups_waited_in(snapshots[rank]):
            versions = {}
            for each, snapshot in snapshots.items():
                members = members_of(snapshot, name)
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


def _groups_waited_in(snapshot):
    if snapshot is None:
        return []
    last = last_collective(snapshot)
    forming = [snapshot["forming"]["name"]] if snapshot["forming"] else []
    return forming + ([last["group"]] if last and not forming else [])


def members_of(snapshot, name):
    """
    Return the ranks of which a rank makes, or has made, the group of that name; or None.
    """
    if snapshot is None:
        return None
    if snapshot["forming"] and snapshot["forming"]["name"] == name:
        return snapshot["forming"]["ranks"]
    return snapshot["groups"].get(name)


def _other_collectives(snapshots):
    numbers = {
        (collective["record"], collective["group"], collective["number"])
        for snapshot in snapshots.values()
        if snapshot
        for collective in snapshot["collectives"]
    }
    for _, group, number in sorted(numbers):
        calls = {}
        for rank, snapshot in snapshots.items():
            found = find_collective(snapshot, {"group": group, "number": number})
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


def _other_roots(snapshots, running):
    """
    Find a collective that ranks wait in with different roots.
    """
    calls = {}
    for rank in running:
        snapshot, last = snapshots[rank], last_collective(snapshots[rank])
        if last and snapshot["root"] is not None:
            roots = calls.setdefault(_key(last), {})
            roots.setdefault(snapshot["root"], []).append(rank)
    for (_, number), roots in sorted(calls.items()):
        if len(roots) < 2:
            continue
        whose = f"as collective {number}"
        if all(ranks == [root] for root, ranks in roots.items()):
            snapshot = snapshots[min(roots)]
            call = _describe(last_collective(snapshot))
            own = f"each {_way(snapshot)} itself"
            return f"{rank_names(roots)} called {call} {whose}, {own}", sorted(roots)
        # A root that has finished was of its own opinion: it speaks for its side, too.
        sides = sorted(
            roots.items(),
            key=lambda side: (len({*side[1], *({side[0]} - set(running))}), -side[1][0]),
        )
        parts = [
            f"{rank_names(ranks)} called {_describe(last_collective(snapshots[ranks[0]]))} "
            f"{_way(snapshots[ranks[0]])} rank {root}"
            for root, ranks in sides
        ]
        return f"{parts[0]} {whose}, where {', '.join(parts[1:])}", sides[0][1]
    return None


def _way(snapshot):
    return "to" if snapshot["call"] in _TO_THE_ROOT else "from"
