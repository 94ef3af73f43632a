"""
Time steps and all-reduces on ranks.

Legend: times are seconds by this rank's own clock, from a barrier on; w ranks.
"""

import time
from functools import partial

import torch
import torch.distributed as dist

from ..process_group import rank_device


def step_times_s(step, num_steps, group=None):
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


def all_reduce_times_s(sizes_bytes, num_tries=7, all_reduce=dist.all_reduce, group=None):
    """
    Return the seconds of all-reduces of several sizes; the least of some tries, on this rank.

    All sizes take turns, so that a slow moment harms all alike. What a program that interrupts adds
    makes a try longer, never shorter.

    Collective: every rank of the group must call it.

    Args:
        sizes_bytes: Bytes of the tensors, multiples of 4.
        num_tries: How often each is sent, after once that is not timed.
        all_reduce: Function (tensor, group=) that makes one.
        group: The process group, or None for the default group.

    Returns:
        dict: Bytes -> seconds.

    Lesson: 11_speed.
    """
    device = rank_device() if dist.get_backend(group) == "nccl" else "cpu"
    tensors = {size: torch.zeros(size // 4, device=device) for size in sizes_bytes}
    tries: dict = {size: [] for size in sizes_bytes}
    for _ in range(1 + num_tries):
        for size, tensor in tensors.items():
            tries[size] += step_times_s(partial(all_reduce, tensor, group=group), 1, group)
    return {size: min(times_s[1:]) for size, times_s in tries.items()}


def settle():
    """
    Wait until the device has done all that it was given. A CPU has.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
