"""
Time steps and all-reduces on ranks.

Legend: times are seconds by this rank's own clock, from a barrier on; w ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist

from ..process_group import rank_device

if TYPE_CHECKING:

    class AllReduce(Protocol):
        """
        A function that adds a tensor up over ranks, in place.
        """

        def __call__(
            self, tensor: torch.Tensor, *, group: dist.ProcessGroup | None = None
        ) -> object: ...


_NUM_THAT_AGREE, _AGREE = 5, 1.05


def step_times_s(
    step: Callable[[], object], num_steps: int, group: dist.ProcessGroup | None = None
) -> list[float]:
    """
    Return the seconds of each step, all ranks starting together.

    Collective: every rank of the group must call it.

    Args:
        step: Function without arguments that makes one step.
        num_steps: How many.
        group: The process group, or None for the default group.

    Lesson: 11_speed.
    """
    times_s = []
    for _ in range(num_steps):
        dist.barrier(group)
        settle()
        start_s = time.perf_counter()
        step()
        settle()
        times_s.append(time.perf_counter() - start_s)
    return times_s


def least_step_s(
    step: Callable[[], object], most: int = 100, group: dist.ProcessGroup | None = None
) -> float:
    """
    Return the seconds of a step that nothing has interrupted, on this rank.

    What another program takes makes a step longer, never shorter. So steps are made until, on every
    rank, the five fastest agree within 5 %: on a quiet machine those are the first five.

    Collective: every rank of the group must call it.

    Args:
        step: Function without arguments that makes one step.
        most: After how many it is enough in any case.
        group: The process group, or None for the default group.

    Lesson: 11_speed.
    """
    times_s: list[float] = []
    while len(times_s) < most and not _have_settled([times_s], group):
        times_s += step_times_s(step, 1, group)
    return min(times_s)


def all_reduce_times_s(
    sizes_bytes: Collection[int],
    most: int = 100,
    all_reduce: AllReduce = dist.all_reduce,
    group: dist.ProcessGroup | None = None,
) -> dict[int, float]:
    """
    Return the seconds of all-reduces of several sizes, as `least_step_s` finds them.

    All sizes take turns, so that a slow moment harms all alike.

    Collective: every rank of the group must call it.

    Args:
        sizes_bytes: Bytes of the tensors, multiples of 4.
        most: How often each is sent at most, after once that is not timed.
        all_reduce: Function (tensor, group=) that makes one.
        group: The process group, or None for the default group.

    Returns:
        dict: Bytes -> seconds.

    Lesson: 11_speed.
    """
    device = rank_device() if dist.get_backend(group) == "nccl" else "cpu"
    calls = {
        size: partial(all_reduce, torch.zeros(size // 4, device=device), group=group)
        for size in sizes_bytes
    }
    for call in calls.values():
        call()  # a first one connects, and takes memory
    tries: dict[int, list[float]] = {size: [] for size in sizes_bytes}
    while not _have_settled(tries.values(), group) and any(len(t) < most for t in tries.values()):
        for size, call in calls.items():
            tries[size] += step_times_s(call, 1, group)
    return {size: min(times_s) for size, times_s in tries.items()}


def _have_settled(all_times_s, group):
    # Whether the fastest agree on every rank: all must go on, or all stop.
    is_open = False
    for times_s in all_times_s:
        fastest_s = sorted(times_s)[:_NUM_THAT_AGREE]
        is_open |= len(fastest_s) < _NUM_THAT_AGREE or fastest_s[-1] > _AGREE * fastest_s[0]
    device = rank_device() if dist.get_backend(group) == "nccl" else "cpu"
    num_open = torch.tensor([int(is_open)], device=device)
    dist.all_reduce(num_open, group=group)
    return num_open.item() == 0


def settle() -> None:
    """
    Wait until the device has done all that it was given. A CPU has.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
