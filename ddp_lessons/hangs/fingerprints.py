"""
Compare what ranks are about to call, before any of them waits.

torch does so with TORCH_DISTRIBUTED_DEBUG=DETAIL. Each rank leaves a few words on its next call
where all can read them, and nobody makes the call before all words are equal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

import torch.distributed as dist

from ddp_lessons.errors import CallsDiffer, RanksMissing
from ddp_lessons.private import process_groups
from ddp_lessons.process_group import DEFAULT_DEADLINE_S, missing_ranks

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Call:
    """
    Hold what must be equal in a collective call of all ranks: its fingerprint.

    Args:
        name: Such as "all_reduce".
        numel: Number of elements; None for a call without a tensor.
        dtype: Such as "float32"; None likewise.
        root: The root; None for a call without one.
    """

    name: str
    numel: int | None = None
    dtype: str | None = None
    root: int | None = None

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor | None = None, root: int | None = None) -> Self:
        """
        Return the fingerprint of a call.

        A [6] and a [2, 3] go over the wire as the same six numbers, so the shape is not in it.
        """
        if tensor is None:
            return cls(name, root=root)
        return cls(name, tensor.numel(), str(tensor.dtype).removeprefix("torch."), root)

    def __str__(self) -> str:
        tensor = f" of {self.numel} {self.dtype}" if self.numel is not None else ""
        return self.name + tensor + (f", root {self.root}" if self.root is not None else "")


def odd_ranks(calls: Sequence[object]) -> list[int]:
    """
    Return the ranks whose call is not that of most, in rising order; empty if all calls are equal.

    Where no call has most, the one of the lowest rank counts.

    Args:
        calls: For each rank what it is about to call, in rank order.
    """
    most = max(calls, key=calls.count)  # max takes the first of equals
    return [rank for rank, call in enumerate(calls) if call != most]


def agree(
    name: str,
    tensor: torch.Tensor | None = None,
    root: int | None = None,
    group: dist.ProcessGroup | None = None,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> None:
    """
    Return if all ranks are about to make the same call, or say who is not, and make none.

    It goes through the group's store and through no collective, so the group is whole after an
    error. It leaves keys in the store: it is for finding a fault, and not for each step of a run.

    Collective: every rank of the group must call it, just before the call that it is about.

    Args:
        name: The name of the call, such as "all_reduce".
        tensor: Its tensor, if it has one.
        root: Its root, if it has one.
        group: The process group. Default: the group of all.
        deadline_s: Seconds to wait for the others.

    Raises:
        CallsDiffer: Some ranks are about to make another call; raised on every rank.
        RanksMissing: Some ranks are about to make none; raised on every rank that came.

    Source: torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp. Lesson: 10_hangs.
    """
    group = group or dist.group.WORLD
    store = process_groups.store_of(group)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    number = store.add(f"ddp_lessons/num_calls/{rank}", 1)
    meeting, call = f"ddp_lessons/call-{number}", Call.of(name, tensor, root)
    store.set(f"{meeting}/of-{rank}", json.dumps(asdict(call)))
    missing = missing_ranks(store, rank, size, deadline_s, meeting)
    world_ranks = dist.get_process_group_ranks(group)
    if missing:
        absent = [world_ranks[other] for other in missing]
        raise RanksMissing(
            f"No {name}: {_told(absent)} did not call it within {deadline_s:g} s, as "
            f"{size - len(missing)} of {size} ranks did (reported by rank {dist.get_rank()}). "
            "Look where they are.",
            absent,
        )
    calls = [Call(**json.loads(store.get(f"{meeting}/of-{other}"))) for other in range(size)]
    odd = odd_ranks(calls)
    if odd:
        first, usual = odd[0], next(r for r in range(size) if r not in odd)
        raise CallsDiffer(
            f"Calls differ: expected one call on all ranks (got {calls[first]} on rank "
            f"{world_ranks[first]}, {calls[usual]} on rank {world_ranks[usual]}). Find the line "
            "where they part.",
            [world_ranks[other] for other in odd],
        )


def _told(ranks):
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
