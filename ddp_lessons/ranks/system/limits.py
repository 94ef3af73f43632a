"""
The cores and the memory that this process may use: the machine's, or less in a container.

The doctor tells of them and `start_ranks` goes by them, so that both see the same machine.
"""

import contextlib
import os
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def _cgroups(root=_CGROUP):
    """
    Return the folders of this process's control group (version 2) and of all groups above it.
    """
    path = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                path = line.removeprefix("0::").strip("/")
    group = root / path
    return [group, *(parent for parent in group.parents if parent.is_relative_to(root))]


def _numbers(path):
    """
    Return the numbers in a control group's file; [] if it is missing or says "max", no limit.
    """
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []


def _cached_bytes(group):
    """
    Return the bytes of a group's memory that hold files and were not used lately.

    They count as used, and the system gives them away as soon as somebody needs them.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in (group / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file":
                return int(value)
    return 0


def usable_cores():
    """
    Return how many CPU cores this process may use: affinity and cgroup quota respected.
    """
    num_cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    for group in _cgroups():
        if quota_and_period := _numbers(group / "cpu.max"):
            quota, period = quota_and_period
            num_cores = min(num_cores, max(1, quota // period))
    return num_cores


def memory():
    """
    Return the bytes of memory that this process may use, and those free now.
    """
    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    for group in _cgroups():
        limit = sum(_numbers(group / "memory.max")) or machine.total
        if limit < machine.total:
            used = sum(_numbers(group / "memory.current")) - _cached_bytes(group)
            total, free = min(total, limit), max(0, min(free, limit - used))
    return total, free
