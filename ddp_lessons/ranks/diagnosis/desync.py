"""
Desyncs: ranks of one group that made different calls, of another group, collective or root.

All functions here are pure. They take snapshots, and those that find a desync return
(sentence, culprits) or None.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeVar

from ddp_lessons.ranks.diagnosis.wording import last_collective, rank_names
from ddp_lessons.ranks.messages.snapshot import snapshot_of

if TYPE_CHECKING:
    from ddp_lessons.ranks.messages.snapshot import Collective, RankSnapshot, Snapshots

    _Finding = tuple[str, list[int]] | None  # a sentence, and the culprits

_Version = TypeVar("_Version")

COMPARED_SIZES = {"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor"}
"""
Collectives to which every rank must pass the same number of elements.
"""
_TO_THE_ROOT = {"reduce", "gather", "gather_object"}


def first_mismatch(snapshots: Snapshots, running: Collection[int]) -> tuple[str, list[int]] | None:
    """
    Return the first desync of a cell. Later ones are ignored: one mistake shifts all later calls.

    Args:
        snapshots: For each rank its snapshot or None.
        running: The ranks that have not finished the cell.

    Returns:
        (str, list[int]) or None: The sentence about the desync, and the culprits.
    """
    return (
        _other_counts(snapshots, running)
        or _clashing_groups(snapshots, running)
        or _other_collectives(snapshots)
        or _other_roots(snapshots, running)
    )


def find_collective(snapshot: RankSnapshot | None, key: tuple[str, int]) -> Collective | None:
    """
    Return a rank's collective with the same group and number as a given one, or None.

    Args:
        snapshot: The rank's snapshot or None.
        key: The group's name, and the number in it.
    """
    for other in snapshot.collectives if snapshot else ():
        if other.key == key:
            return other
    return None


def calls_alike(other: int, rank: int, snapshots: Snapshots) -> bool:
    """
    Return whether another rank has made the call that a rank is in now.

    It must be the same collective, under the same number of their group, and with the same root.
    """
    mine, theirs = snapshot_of(rank, snapshots), snapshots.get(other)
    last, their_last = last_collective(mine), last_collective(theirs)
    if last is None or theirs is None or their_last is None:
        return False
    found = find_collective(theirs, last.key)
    if found is None or _signature(found) != _signature(last):
        return False
    is_in_it = their_last.key == last.key
    roots = {mine.root, theirs.root}
    return not is_in_it or None in roots or len(roots) == 1


def makes_alike(other: int, rank: int, snapshots: Snapshots) -> bool:
    """
    Return whether another rank makes, or has made, the group that a rank is making.
    """
    forming = snapshot_of(rank, snapshots).forming
    if forming is None:
        return False
    counts = {_count_among_all(snapshots.get(each), snapshots) for each in (rank, other)}
    return members_of(snapshots.get(other), forming.name) == forming.ranks and (
        None in counts or len(counts) == 1
    )


def _count_among_all(snapshot: RankSnapshot | None, snapshots: Snapshots) -> str | None:
    """
    Return the number under which a rank joins the group of all ranks; None if it does not join it.
    """
    forming = snapshot.forming if snapshot else None
    # Ranks that join smaller worlds need not meet, so their numbers may differ.
    return forming.count if forming and forming.ranks == sorted(snapshots) else None


def _other_counts(snapshots: Snapshots, running: Collection[int]) -> _Finding:
    """
    Find ranks that join the group of all ranks under different numbers.

    Each rank's torch counts the groups that the rank has begun to make. Ranks with different counts
    look for each other under different keys of the store, and never meet.
    """
    counts: dict[str, list[int]] = {}
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


def _fewest_first(versions: Mapping[_Version, list[int]]) -> list[tuple[_Version, list[int]]]:
    """
    Return pairs of a version and its ranks in the order of the message: fewest ranks first.
    """
    return sorted(versions.items(), key=lambda each: (len(each[1]), -each[1][0]))


def _clashing_groups(snapshots: Snapshots, running: Collection[int]) -> _Finding:
    """
    Find a group in which a rank waits, and whose name stands for different members on other ranks.

    torch names groups by a number that each rank counts separately, in the order of its calls.
    """
    for rank in running:
        for name in _groups_waited_in(snapshots[rank]):
            versions: dict[tuple[int, ...], list[int]] = {}
            for each, snapshot in snapshots.items():
                members = members_of(snapshot, name)
                if members:
                    versions.setdefault(tuple(members), []).append(each)
            if len(versions) > 1:
                fewest = _fewest_first(versions)
                parts = [f"of {rank_names(members)} on {rank_names(on)}" for members, on in fewest]
                sentence = (
                    f"group {name} consists {', but '.join(parts)}: each rank numbers the groups "
                    "that it creates, so every rank must create every group, in the same order"
                )
                return sentence, fewest[0][1]
    return None


def _groups_waited_in(snapshot: RankSnapshot | None) -> list[str]:
    if snapshot is None:
        return []
    last = last_collective(snapshot)
    forming = [snapshot.forming.name] if snapshot.forming else []
    return forming + ([last.group] if last and not forming else [])


def members_of(snapshot: RankSnapshot | None, name: str) -> list[int] | None:
    """
    Return the members of the group that a rank makes, or has made, under a name; None without one.
    """
    if snapshot is None:
        return None
    if snapshot.forming and snapshot.forming.name == name:
        return snapshot.forming.ranks
    return snapshot.groups.get(name)


def _other_collectives(snapshots: Snapshots) -> _Finding:
    numbers = {
        (collective.record, collective.group, collective.number)
        for snapshot in snapshots.values()
        if snapshot
        for collective in snapshot.collectives
    }
    for _, group, number in sorted(numbers):
        calls: dict[str, list[tuple[int, Collective]]] = {}
        for rank, snapshot in snapshots.items():
            found = find_collective(snapshot, (group, number))
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


def _describe(collective: Collective) -> str:
    sizes = ", ".join(
        f"{dtype.lower()}{size}"
        for dtype, size in zip(collective.dtypes, collective.sizes, strict=False)
    )
    return f"{collective.name} {sizes}".strip()


def _signature(collective: Collective) -> str:
    if collective.name not in COMPARED_SIZES:
        return collective.name
    # Compare numbers of elements, not shapes: torch reduces a [6] with a [2, 3] correctly.
    counts = [math.prod(size) for size in collective.sizes]
    return repr((collective.name, counts, collective.dtypes))


def _other_roots(snapshots: Snapshots, running: Collection[int]) -> _Finding:
    """
    Find a collective in which ranks wait with different roots.
    """
    calls: dict[tuple[str, int], dict[int, list[int]]] = {}
    for rank in running:
        snapshot, last = snapshots[rank], last_collective(snapshots[rank])
        if snapshot and last and snapshot.root is not None:
            roots = calls.setdefault(last.key, {})
            roots.setdefault(snapshot.root, []).append(rank)
    for (_, number), roots in sorted(calls.items()):
        if len(roots) < 2:
            continue
        whose = f"as collective {number}"
        if all(ranks == [root] for root, ranks in roots.items()):
            snapshot = snapshot_of(min(roots), snapshots)
            call = _describe(last_collective(snapshot))  # type: ignore[arg-type]  # it waits
            own = f"each {_way(snapshot)} itself"
            return f"{rank_names(roots)} called {call} {whose}, {own}", sorted(roots)
        # A root that has returned from the call counts as a vote for itself.
        sides = sorted(
            roots.items(),
            key=lambda side: (len({*side[1], *({side[0]} - set(running))}), -side[1][0]),
        )
        parts = [
            f"{rank_names(ranks)} called "
            f"{_describe(last_collective(snapshots[ranks[0]]))} "  # type: ignore[arg-type]  # waits
            f"{_way(snapshot_of(ranks[0], snapshots))} rank {root}"
            for root, ranks in sides
        ]
        return f"{parts[0]} {whose}, where {', '.join(parts[1:])}", sides[0][1]
    return None


def _way(snapshot: RankSnapshot) -> str:
    return "to" if snapshot.call in _TO_THE_ROOT else "from"
