"""
The cores and the memory that this process may use: the machine's, or less in a container or a hub.

The doctor tells of them and `start_ranks` goes by them, so that both see the same machine. A hub
that bounds its learners says so in the variables MEM_LIMIT (bytes) and CPU_LIMIT (cores).
"""

import contextlib
import math
import os
from pathlib import Path

import psutil

from ddp_lessons.errors import BadInput

_CGROUP = Path("/sys/fs/cgroup")


def setting(name):
    """
    Return the number that a variable of the environment sets, or None if it is not set.

    Args:
        name: A variable of ours, such as "DDP_LESSONS_MAX_RANKS".

    Raises:
        BadInput: It is no number above 0.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    number = _positive(text)
    if number is None:
        raise BadInput(
            f"Wrong setting: {name} must be a number above 0 (got {text!r}). "
            "Mend it where it is set, as in a hub's configuration, or unset it."
        )
    return number


def _positive(text):
    """
    Return the number above 0 that a text says, or None.
    """
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


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
    Return how many CPU cores this process may use: affinity, cgroup quota and hub respected.
    """
    num_cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    for group in _cgroups():
        if quota_and_period := _numbers(group / "cpu.max"):
            quota, period = quota_and_period
            num_cores = min(num_cores, max(1, quota // period))
    if limit := _positive(os.environ.get("CPU_LIMIT", "")):
        num_cores = min(num_cores, max(1, int(limit)))
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
    limit = int(_positive(os.environ.get("MEM_LIMIT", "")) or total)
    if limit < total:  # else a control group holds us to it, which has been counted
        total, free = limit, max(0, min(free, limit - _used_by_this_user()))
    return total, free


def memory_that_nobody_bounds():
    """
    Return the bytes that a hub tells this user to keep to, or None.

    It is None as well where a control group holds the user to them: nobody has to see to it then.
    """
    limit = _positive(os.environ.get("MEM_LIMIT", ""))
    if limit is None or any(sum(_numbers(group / "memory.max")) for group in _cgroups()):
        return None
    return int(limit)


def _used_by_this_user():
    """
    Return the bytes that all processes of this user hold; what several share is divided by them.
    """
    num_bytes = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid():
                found = process.memory_full_info()
                num_bytes += getattr(found, "pss", found.uss)
    return num_bytes
