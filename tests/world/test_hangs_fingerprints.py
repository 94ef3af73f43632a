"""
Calls are compared before any rank waits; ranks whose calls differ or are missing are named.
"""

import pytest
import torch
import torch.distributed as dist
from meetings import all_come_in_time_but
from waiting import HANGS_AFTER_S
from worlds import run_world

from ddp_lessons.errors import CallsDiffer, RanksMissing
from ddp_lessons.hangs import Call, agree, odd_ranks


def test_call_holds_what_must_be_equal():
    """
    A Call holds what must be equal on all ranks: name, size, dtype and root. Shapes do not count,
    because messages have none.
    """
    one, other = Call.of("all_reduce", torch.ones(6)), Call.of("all_reduce", torch.ones(2, 3))
    assert one == other
    assert one != Call.of("all_reduce", torch.ones(6).double())
    assert str(one) == "all_reduce of 6 float32"
    assert str(Call.of("barrier")) == "barrier"
    assert str(Call.of("broadcast", torch.ones(2), root=1)) == "broadcast of 2 float32, root 1"


@pytest.mark.parametrize(
    ("calls", "odd"),
    [("a", []), ("aa", []), ("ab", [1]), ("baa", [0]), ("abab", [1, 3]), ("abc", [1, 2])],
)
def test_odd_ranks_are_those_unlike_most(calls, odd):
    """
    The ranks with another call than most are odd. In a draw the lowest rank's call wins, so that
    all ranks find the same.
    """
    assert odd_ranks(list(calls)) == odd


def _agree(rank, world_size):
    said = []
    group = dist.new_group(list(range(world_size)))
    for tensor in (torch.ones(3), torch.ones(3 + (rank == world_size - 1))):
        try:
            agree("all_reduce", tensor, group=group, deadline_s=HANGS_AFTER_S)
            dist.all_reduce(tensor, group=group)
            said.append(tensor.tolist())
        except CallsDiffer as error:
            said.append((error.ranks, str(error)))
    dist.barrier()
    if rank != 0:
        try:
            with all_come_in_time_but([0]):
                agree("barrier", deadline_s=1.5)
        except RanksMissing as error:
            said.append((error.ranks, str(error)))
    return said


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_agree_names_who_differs_and_who_is_missing(world_size):
    """
    `agree` names the ranks that differ or are missing. No collective has been called, so the group
    works afterwards.
    """
    for rank, said in enumerate(run_world(world_size, _agree)):
        assert said[0] == [float(world_size)] * 3
        if world_size == 1:
            assert said[1] == [1.0] * 4
            continue
        ranks, text = said[1]
        assert ranks == [world_size - 1]
        assert "all_reduce of 4 float32 on rank" in text
        if rank:
            ranks, text = said[2]
            assert ranks == [0]
            assert text.startswith(
                "No barrier: rank 0 did not call it within 1.5 s, as "
                f"{world_size - 1} of {world_size} ranks did (reported by rank {rank})."
            )
