"""
Missing ranks are named by all ranks that came, in the same words, over every kind of store.
"""

import socket

import pytest
import torch
import torch.distributed as dist
from meetings import all_come_in_time_but
from waiting import HANGS_AFTER_S
from worlds import run_world

from ddp_lessons.errors import BadInput, RanksMissing
from ddp_lessons.process_group import (
    come_together,
    file_store,
    join_group,
    join_group_tcp,
    missing_ranks,
    split_by_name,
    tcp_store,
    wait_for_ranks,
)

DEADLINE_S = 1.5


def _message(ranks, num_missing, rank, world_size):
    return (
        f"{ranks} did not arrive within {DEADLINE_S:g} s: {world_size - num_missing} of "
        f"{world_size} ranks {'is' if world_size - num_missing == 1 else 'are'} here (reported by "
        f"rank {rank}). Check whether "
    )


def _come_without(rank, world_size, folder, absent, over_tcp):
    if rank in absent:
        return None
    try:
        with all_come_in_time_but(absent):
            if over_tcp:
                join_group_tcp(
                    "127.0.0.1",
                    _port(folder, rank),
                    rank,
                    world_size,
                    deadline_s=DEADLINE_S,
                    publish=lambda port: _publish(folder, port),
                )
            else:
                join_group(f"{folder}/store", rank, world_size, deadline_s=DEADLINE_S)
    except RanksMissing as error:
        return error.ranks, str(error), dist.is_initialized()
    return "joined"


def _publish(folder, port):
    file_store(f"{folder}/port", -1).set("port", str(port))


def _port(folder, rank):
    return 0 if rank == 0 else int(file_store(f"{folder}/port", -1).get("port"))


@pytest.mark.parametrize("over_tcp", [False, True], ids=["file", "tcp"])
@pytest.mark.parametrize(
    ("world_size", "absent", "named"),
    [
        (2, [1], "Rank 1"),
        (3, [2], "Rank 2"),
        (4, [2], "Rank 2"),
        (4, [1, 3], "Ranks 1, 3"),
        (4, [1, 2, 3], "Ranks 1, 2, 3"),
    ],
)
def test_join_names_the_missing_on_all_others(tmp_path, world_size, absent, named, over_tcp):
    """
    After the deadline every rank that came names the same missing ranks, and is in no group.
    """
    seen = run_world(world_size, _come_without, str(tmp_path), absent, over_tcp, join=False)
    for rank, answer in enumerate(seen):
        if rank in absent:
            continue
        ranks, message, in_group = answer
        assert ranks == absent
        assert message.startswith(_message(named, len(absent), rank, world_size))
        assert not in_group


def test_join_over_a_file_names_rank_0_too(tmp_path):
    """
    Over a file a missing rank 0 is named as any other, since it does not hold the store.
    """
    seen = run_world(3, _come_without, str(tmp_path), [0], False, join=False)
    assert [answer and answer[0] for answer in seen] == [None, [0], [0]]


def test_the_answer_is_the_same_for_one_that_comes_late():
    """
    A rank that comes after it was declared missing gets the same answer, so that it does not
    believe in a group.
    """
    store = dist.HashStore()
    assert missing_ranks(store, 0, 2, 0) == [1]
    assert missing_ranks(store, 1, 2, 0) == [1]
    assert missing_ranks(store, 1, 2, 0, meeting="next") == [0]


def test_who_knows_first_ends_the_wait_of_the_others():
    """
    The first rank whose time has run out writes the answer, and ends the wait of the others.
    """
    store = dist.HashStore()
    assert missing_ranks(store, 1, 3, 0) == [0, 2]
    assert missing_ranks(store, 0, 3, 10 * HANGS_AFTER_S) == [0, 2]


def test_rank_0_does_not_wait_for_ever_for_one_that_has_died():
    """
    Rank 0 holds the store. It does not wait for ever for a rank that came and died before it read
    the answer.
    """
    store = dist.HashStore()
    store.set("here/1", "yes")
    assert missing_ranks(store, 0, 3, 0) == [2]


@pytest.mark.parametrize(
    ("rank", "world_size", "deadline_s", "message"),
    [
        (0, 0, 1, "The world is empty: a world size from 1 (got 0). "),
        (2, 2, 1, "The rank is not of this world: 0 to 1 (got 2). "),
        (-1, 2, 1, "The rank is not of this world: 0 to 1 (got -1). "),
        (0, 1, -1, "The deadline is in the past: seconds from 0 (got -1, rank 0 of 1). "),
    ],
)
def test_come_together_refuses_what_cannot_be(rank, world_size, deadline_s, message):
    """
    Wrong numbers are refused, and do not become a wait.
    """
    with pytest.raises(BadInput) as refused:
        come_together(dist.HashStore(), rank, world_size, deadline_s)
    assert str(refused.value).startswith(message)


def _wait_without_last(rank, world_size):
    wait_for_ranks(HANGS_AFTER_S)
    last = world_size - 1
    named = None
    if rank != last:
        try:
            with all_come_in_time_but([last]):
                wait_for_ranks(DEADLINE_S)
        except RanksMissing as error:
            named = error.ranks
    total = torch.ones(1)
    dist.all_reduce(total)
    return named, total.item()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_wait_for_ranks_names_who_does_not_call_and_leaves_the_group_whole(world_size):
    """
    A running group can be checked for missing ranks, and works afterwards.
    """
    seen = run_world(world_size, _wait_without_last)
    last = world_size - 1
    assert seen == [([last], float(world_size))] * last + [(None, float(world_size))]


def _wait_in_a_part(rank, world_size):
    part = split_by_name({"end": range(1, world_size)})
    if rank == 0:
        try:
            wait_for_ranks(0, group=dist.GroupMember.NON_GROUP_MEMBER)
        except BadInput as error:
            return str(error)
    elif rank == 1:
        try:
            with all_come_in_time_but([1]):
                wait_for_ranks(DEADLINE_S, group=part)
        except RanksMissing as error:
            return error.ranks, str(error)
    return None


def test_wait_for_ranks_of_a_subgroup_tells_ranks_of_the_world():
    """
    In a subgroup, ranks are named by their number in the world: a learner knows rank 2, not "rank 1
    of my subgroup".
    """
    seen = run_world(3, _wait_in_a_part)
    assert seen[0].startswith("This rank is not in the group: ")
    assert seen[1][0] == [2]
    assert seen[1][1].startswith(
        f"Rank 2 did not arrive within {DEADLINE_S:g} s: 1 of 2 ranks is here (reported by rank 1)."
    )


def test_wait_for_ranks_outside_a_group_is_refused():
    """
    Outside a group `wait_for_ranks` is refused, since there is no rank to wait for.
    """
    with pytest.raises(BadInput, match="This rank is not in the group"):
        wait_for_ranks()


def test_a_store_whose_owner_never_comes_names_it():
    """
    Without rank 0 there is no store, so the error names rank 0 as missing, without pages of C++
    frames.
    """
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # holds the port, and does not listen
        _check_owner_is_named(silent.getsockname()[1])


def _check_owner_is_named(port):
    for owner, named, ranks in ((0, "Rank 0", [0]), (None, "The launcher's agent", [])):
        with pytest.raises(RanksMissing) as missing:
            tcp_store("127.0.0.1", port, 1, 0.1, owner=owner)
        assert str(missing.value).startswith(
            f"{named} did not open its store within 0.1 s (reported by rank 1). "
        )
        assert missing.value.ranks == ranks


def test_a_meeting_of_all_names_nobody(lone_group):
    """
    If all ranks come, no error is raised, also in a world of one.
    """
    wait_for_ranks(0)
    wait_for_ranks(0)
    assert missing_ranks(dist.HashStore(), 0, 1, 0) == []
