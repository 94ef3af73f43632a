"""
The wait graph: which rank waits for which other, and who is the culprit. All functions are pure.

They take the snapshots that `RankAgent.snapshot` returns. A rank that has finished the cell has a
snapshot without a line. A rank that did not answer has None instead. The snapshot of a rank that
was not asked to run the cell has `outside=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from ddp_lessons.private.stack_names import CONNECTS_TO_A_STORE
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
from ddp_lessons.ranks.messages.snapshot import snapshot_of
from ddp_lessons.ranks.system import clocks

if TYPE_CHECKING:
    from ddp_lessons.ranks.messages.snapshot import RankSnapshot, Snapshots

    _WaitsFor = Mapping[int, Collection[int]]
    _Finding = tuple[str, list[int]] | None  # a sentence, and the culprits


@dataclass(frozen=True)
class Diagnosis:
    """
    The cause that holds a cell up.

    Args:
        sentence: One line that names the culprit; "" if no rank waits for another.
        culprits: The ranks for which the others wait.
        waits_for: For each waiting rank, the ranks for which it waits.
        table: The stall table as text.
    """

    sentence: str
    culprits: tuple[int, ...]
    waits_for: dict[int, tuple[int, ...]]
    table: str


def diagnose(
    snapshots: Snapshots, running: Collection[int], halts: Mapping[int, str] | None = None
) -> Diagnosis:
    """
    Return the Diagnosis of a cell that does not end.

    Args:
        snapshots: For each rank of the cell its snapshot or None.
        running: The ranks that have not finished the cell.
        halts: For each halted rank, words for what halts it. Default: no rank is halted.

    Returns:
        Diagnosis: Its sentence is "" if no rank waits for another and none is halted.
    """
    # Ignore the halt of a rank that has finished the cell and answered: its snapshot is valid.
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
    if sentence and all(is_communicating(snapshots[rank]) for rank in running):
        sentence += helpers_clause(snapshots)
    table = stall_table(snapshots, running, waits_for, halts)
    return Diagnosis(sentence, tuple(culprits), waits_for, table)


def is_deadlock(snapshots: Snapshots, running: Collection[int], still_s: float = 0.0) -> bool:
    """
    Return whether every running rank is in a communication call that no rank, thread or child
    process can end, and that has no short time limit. (A queue is no communication call.)

    Args:
        snapshots: For each rank of the cell its snapshot or None.
        running: The ranks that have not finished the cell.
        still_s: Seconds for which the cell has stood still.
    """
    return (
        bool(running)
        and not any(_may_be_helped(snapshot) for snapshot in snapshots.values())
        and all(
            is_communicating(snapshots.get(rank))
            and (
                manual_joins.misses_its_limit(snapshot_of(rank, snapshots), still_s)
                or (
                    not _is_patient(rank, snapshots, running)
                    and not _is_under_way(rank, snapshots, running)
                )
            )
            for rank in running
        )
    )


def _may_be_helped(snapshot: RankSnapshot | None) -> bool:
    # A rank that did not answer by itself may have any other threads and child processes.
    return snapshot is None or snapshot.helpers is None or bool(snapshot.helpers)


def _is_under_way(rank: int, snapshots: Snapshots, running: Collection[int]) -> bool:
    # A call that all ranks of its group have made takes as long as its data needs. That is no
    # deadlock.
    snapshot = snapshot_of(rank, snapshots)
    if operation(snapshot) in POINT_TO_POINT:
        senders_or_receivers = snapshots if snapshot.peer is None else (snapshot.peer,)
        return any(_have_met(rank, other, snapshots) for other in senders_or_receivers)
    if snapshot.call == STORE:
        return False
    if last_collective(snapshot) is None and not snapshot.forming:
        return snapshot.call in COMPUTING  # autograd, before the first gradient is to be averaged
    return not _awaited(rank, snapshots, running) and first_mismatch(snapshots, running) is None


def _have_met(rank: int, other: int, snapshots: Snapshots) -> bool:
    snapshot, partner = snapshot_of(rank, snapshots), snapshots.get(other)
    return (
        is_communicating(partner)
        and {operation(snapshot), operation(partner)} == POINT_TO_POINT
        and partner.peer in (rank, None)
        and (snapshot.tag == partner.tag or None in (snapshot.tag, partner.tag))
    )


def is_communicating(snapshot: RankSnapshot | None) -> TypeGuard[RankSnapshot]:
    """
    Return whether a rank is in a communication call.
    """
    return bool(snapshot and snapshot.call)


def is_busy_outside(snapshot: RankSnapshot | None) -> bool:
    """
    Return whether a rank that was not asked to run the cell still runs something else.
    """
    return bool(snapshot and snapshot.outside and snapshot.busy)


def _is_patient(rank: int, snapshots: Snapshots, running: Collection[int]) -> bool:
    snapshot = snapshot_of(rank, snapshots)
    if snapshot.call == JOIN and first_mismatch(snapshots, running):
        return False  # the join's own error would not name the desync
    if snapshot.call == JOIN and snapshot.function in CONNECTS_TO_A_STORE:
        awaited = _awaited(rank, snapshots, running)
        return not any(_finished_in_no_group(other, snapshots, running) for other in awaited)
    last = last_collective(snapshot)
    limits = [snapshot.timeout_s, last.timeout_s if last else None]
    return any(limit is not None and limit < clocks.OWN_LIMIT_S for limit in limits)


def _finished_in_no_group(rank: int, snapshots: Snapshots, running: Collection[int]) -> object:
    snapshot = snapshots.get(rank)
    return snapshot and rank not in running and not snapshot.outside and not snapshot.groups


def _awaited(rank: int, snapshots: Snapshots, running: Collection[int]) -> tuple[int, ...]:
    snapshot = snapshots[rank]
    if not is_communicating(snapshot) or snapshot.call == STORE:
        return ()
    if operation(snapshot) in POINT_TO_POINT:
        return () if snapshot.peer is None else (snapshot.peer,)
    others = [other for other in snapshots if other != rank]
    last = last_collective(snapshot)
    if snapshot.forming:
        return tuple(
            o for o in snapshot.forming.ranks if o != rank and not makes_alike(o, rank, snapshots)
        )
    if snapshot.call in FORMING or last is None:
        theirs = {o: snapshots[o] for o in others}
        return tuple(o for o, s in theirs.items() if not s or s.call != snapshot.call)
    members = snapshot.groups.get(last.group, list(snapshots))
    return tuple(
        other for other in others if other in members and not calls_alike(other, rank, snapshots)
    )


def _missing(
    snapshots: Snapshots, running: Collection[int], waits_for: _WaitsFor, halts: Mapping[int, str]
) -> _Finding:
    """
    Find the ranks for which others wait, and which do not wait for a rank themselves.

    Return a sentence and these ranks, or None.
    """
    awaited = {peer for peers in waits_for.values() for peer in peers}
    for state, words in _STATES.items():
        culprits = sorted(
            rank for rank in awaited if _state(rank, snapshots, running, halts) == state
        )
        if not culprits:
            continue
        victims = [r for r, peers in waits_for.items() if set(peers) & set(culprits)]
        victim = snapshot_of(victims[0], snapshots)
        call, line = call_name(victim), victim.line
        waiters = f"{rank_names(victims)} wait{'s' if len(victims) == 1 else ''}"
        where = f"in {call}" + (f" (line {line})" if line else "")
        if state == "finished":
            done = f"{rank_names(culprits)} finished the cell without {_partner(call)}"
            return f"{done}; {waiters} {where}", culprits
        them = "it" if len(culprits) == 1 else "them"
        there = words(culprits) if words else _whereabouts(culprits, snapshots, halts)
        return f"{there}; {waiters} for {them} {where}", culprits
    return None


_STATES: dict[str, Callable[[list[int]], str] | None] = {
    "absent": lambda ranks: f"there {_be(ranks)} no {rank_names(ranks)}",
    "outside": lambda ranks: f"{rank_names(ranks)} {_be(ranks, 'was')} not asked to run this cell",
    "finished": None,
    "not communicating": None,
}
"""
States of a rank that does not make an awaited call, the most telling first. Two of them have fixed
words; None means that the words depend on the call or on the snapshot.
"""


def _state(
    rank: int, snapshots: Snapshots, running: Collection[int], halts: Mapping[int, str]
) -> str:
    if rank not in snapshots:
        return "absent"
    snapshot = snapshots[rank]
    if rank not in running and rank not in halts:
        return "outside" if snapshot and snapshot.outside else "finished"
    is_with_ranks = is_communicating(snapshot) and snapshot.call != STORE and rank not in halts
    return "communicating" if is_with_ranks else "not communicating"


def _be(ranks: Collection[int], one: str = "is") -> str:
    many = {"is": "are", "was": "were"}
    return one if len(ranks) == 1 else many[one]


def _whereabouts(ranks: Iterable[int], snapshots: Snapshots, halts: Mapping[int, str]) -> str:
    """
    Return "rank 2 is at line 3: sleep(9); ranks 0 and 1 do not answer".
    """
    at: dict[str, list[int]] = {}
    for rank in ranks:
        snapshot = snapshots.get(rank)
        if rank in halts:
            at_line = (
                f" at line {snapshot.line}: {snapshot.code}" if snapshot and snapshot.line else ""
            )
            spot = halts[rank] + at_line
        elif snapshot is None:
            spot = ""
        elif snapshot.line:
            wait = "waiting for a store's key " if snapshot.call == STORE else ""
            spot = f"{wait}at line {snapshot.line}: {snapshot.code}"
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


def _partner(call: str) -> str:
    return {"send": "a recv", "recv": "a send"}.get(call, call)


_NEVER = {
    "recv": ("in recv", "sends"),
    "send": ("in send", "receives"),
    STORE: ("for a store's key", "sets it"),
}


def _circle(snapshots: Snapshots, running: Collection[int], waits_for: _WaitsFor) -> _Finding:
    """
    Find running ranks that all wait: for one another, or for a call that no rank makes.

    Return a sentence and these ranks, or None.
    """
    waiting = [rank for rank in running if is_communicating(snapshots.get(rank))]
    if not waiting or len(waiting) != len(running):
        return None
    line = snapshot_of(waiting[0], snapshots).line
    if {snapshot_of(rank, snapshots).call for rank in waiting} == {JOIN}:
        return manual_joins.not_met(waiting, line), waiting
    operations = {operation(snapshot_of(rank, snapshots)) for rank in waiting}
    if len(operations) == 1 and operations <= set(_NEVER):
        where, other = _NEVER[operations.pop()]
        all_wait = "waits" if len(waiting) == 1 else "all wait"
        yet = " yet" if helpers_clause(snapshots) else ""
        at = f" (line {line})" if line else ""
        return f"{rank_names(waiting)} {all_wait} {where}{at}, and none {other}{yet}", waiting
    parts = [
        f"rank {rank} waits in {call_name(snapshot_of(rank, snapshots))}"
        + (f" for {rank_names(waits_for[rank])}" if waits_for[rank] else "")
        for rank in waiting
    ]
    return "; ".join(parts), waiting
