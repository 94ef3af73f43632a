"""
Name the ranks that have not arrived by a deadline, with the store alone.

Each rank sets its own key, and checks the keys of the other ranks. No rank needs an answer from
another, so a rank that never arrives cannot keep the others from naming it.
"""

import json
import time

import torch.distributed as dist

from ddp_lessons.errors import BadInput, RanksMissing
from ddp_lessons.private import process_groups

DEFAULT_DEADLINE_S = 3.0
"""
Seconds to wait for the other ranks before the missing ones are named.
"""

_LOOK_EVERY_S = 0.01
_FAREWELL_S = 2.0  # for ranks that came and have died since


def missing_ranks(
    store: dist.Store,
    rank: int,
    world_size: int,
    deadline_s: float = DEFAULT_DEADLINE_S,
    meeting: str = "here",
) -> list[int]:
    """
    Say that this rank has come, and return those that have not within the deadline.

    All ranks that look get the same answer: the first to know, or to run out of time, writes it
    into the store for good. A rank that comes later reads there that it was missed.

    Args:
        store: A store that all ranks share.
        rank: This rank, from 0.
        world_size: Number of ranks.
        deadline_s: Seconds to wait for the others; 0 looks once.
        meeting: Name of the meeting. Keys stay in a store, so each meeting needs its own.

    Returns:
        list[int]: Missing ranks in rising order; empty as soon as all have come.

    Source: torch.distributed documentation, "Distributed Key-Value Store".
    Lesson: 01_process_group.
    """
    # Not store.wait: it names nobody, and a FileStore rounds its time up to whole seconds.
    give_up_at = time.monotonic() + deadline_s
    store.set(f"{meeting}/{rank}", "yes")
    missing = _absent(store, f"{meeting}/", range(world_size))
    while missing and time.monotonic() < give_up_at and not store.check([f"{meeting}/answer"]):
        time.sleep(_LOOK_EVERY_S)
        missing = _absent(store, f"{meeting}/", missing)
    answer = store.compare_set(f"{meeting}/answer", "", json.dumps(missing))
    missing = json.loads(answer)
    if missing:
        _let_all_know(store, rank, set(range(world_size)) - set(missing), meeting)
    return missing


def _absent(store, prefix, ranks):
    return [rank for rank in ranks if not store.check([f"{prefix}{rank}"])]


def _let_all_know(store, rank, present, meeting):
    # A TCP store dies with rank 0, which raises next: it first lets the others read the answer.
    store.set(f"{meeting}/knows/{rank}", "yes")
    give_up_at = time.monotonic() + _FAREWELL_S
    while rank == 0 and _absent(store, f"{meeting}/knows/", present):
        if time.monotonic() >= give_up_at:
            break
        time.sleep(_LOOK_EVERY_S)


def come_together(
    store: dist.Store,
    rank: int,
    world_size: int,
    deadline_s: float = DEFAULT_DEADLINE_S,
    meeting: str = "here",
) -> None:
    """
    Return as soon as all ranks have come, or raise with the names of those that have not.

    Collective: every rank must call it; that is what it finds out.

    Args:
        store: A store that all ranks share.
        rank: This rank, from 0.
        world_size: Number of ranks.
        deadline_s: Seconds to wait for the others.
        meeting: Name of the meeting. Keys stay in a store, so each meeting needs its own.

    Raises:
        BadInput: The rank is not one of the world, or the deadline is negative.
        RanksMissing: Some ranks have not come; its `ranks` holds them.

    Source: torch.distributed documentation, "Distributed Key-Value Store".
    Lesson: 01_process_group.
    """
    check_place(rank, world_size)
    if deadline_s < 0:
        raise BadInput(
            f"The deadline is in the past: seconds from 0 (got {deadline_s:g}, rank {rank} of "
            f"{world_size}). Pass how long the ranks may take."
        )
    missing = missing_ranks(store, rank, world_size, deadline_s, meeting)
    if missing:
        raise RanksMissing(_sentence(missing, world_size, deadline_s, rank), missing)


def wait_for_ranks(
    deadline_s: float = DEFAULT_DEADLINE_S, group: dist.ProcessGroup | None = None
) -> None:
    """
    Return as soon as all ranks of a running group have called this, or name those that have not.

    Collective: every rank of the group must call it as often as the others. It uses the group's
    store and no collective, so the group is whole after an error too.

    Args:
        deadline_s: Seconds to wait for the others.
        group: A process group that this rank is in. Default: the group of all.

    Raises:
        BadInput: This rank is in no group, or not in this one.
        RanksMissing: Some ranks have not called it; its `ranks` holds their ranks in the world.

    Source: torch.distributed documentation, "Monitored barrier"; there only rank 0 learns who is
    missing. Lesson: 01_process_group.
    """
    if not dist.is_initialized() or group is dist.GroupMember.NON_GROUP_MEMBER:
        raise BadInput(
            "This rank is not in the group: only members can wait for one another (got no "
            "group). Join a group first, or leave this call to its members."
        )
    group = group or dist.group.WORLD
    store = process_groups.store_of(group)
    world_ranks = dist.get_process_group_ranks(group)
    rank, size = dist.get_rank(group), len(world_ranks)
    number = store.add(f"ddp_lessons/num_meetings/{rank}", 1)
    meeting = f"ddp_lessons/meeting-{number}"
    missing = missing_ranks(store, rank, size, deadline_s, meeting)
    if missing:
        missing = [world_ranks[other] for other in missing]
        raise RanksMissing(_sentence(missing, size, deadline_s, dist.get_rank()), missing)


def check_place(rank: int, world_size: int) -> None:
    """
    Refuse a rank that is not one of the world.

    Raises:
        BadInput: The world size is below 1, or the rank is not from 0 to the world size less 1.
    """
    if world_size < 1:
        raise BadInput(
            f"The world is empty: a world size from 1 (got {world_size}). "
            "Pass the number of all ranks."
        )
    if not 0 <= rank < world_size:
        raise BadInput(
            f"The rank is not of this world: 0 to {world_size - 1} (got {rank}). "
            "Count ranks from 0."
        )


def _sentence(missing, size, deadline_s, reporter):
    word = "Rank" if len(missing) == 1 else "Ranks"
    names = ", ".join(map(str, missing))
    num_here = size - len(missing)
    return (
        f"{word} {names} did not arrive within {deadline_s:g} s: {num_here} of {size} ranks "
        f"{'is' if num_here == 1 else 'are'} here (reported by rank {reporter}). "
        f"Check whether {word.lower()} {names} started, and read "
        f"{'its' if len(missing) == 1 else 'their'} output."
    )
