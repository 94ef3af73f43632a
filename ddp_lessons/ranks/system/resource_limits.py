"""
The cores and memory that this process may use: the machine's, or less in a container or JupyterHub.

Both the command `doctor` and `start_ranks` use these numbers, so they see the same machine. A
JupyterHub with limits for its users sets the variables MEM_LIMIT (bytes) and CPU_LIMIT (cores).
"""

import contextlib
import math
import os
from pathlib import Path

import psutil

from ddp_lessons.errors import BadInput

_CGROUP = Path("/sys/fs/cgroup")


def setting(name: str) -> float | None:
    """
    Return the number in an environment variable, or None if the variable is not set.

    The environment in which this process was started wins: a notebook that changes `os.environ`
    does not change a hub's bound. That is no protection: another process can have another value.

    Args:
        name: Name of a variable of ours, such as "DDP_LESSONS_MAX_RANKS".

    Raises:
        BadInput: The value is not a number above 0.
    """
    text = (_initial_environment().get(name) or os.environ.get(name, "")).strip()
    if not text:
        return None
    number = _positive(text)
    if number is None:
        raise BadInput(
            f"Wrong setting: {name} must be a number above 0 (got {text!r}). "
            "Mend it where it is set, as in a hub's configuration, or unset it."
        )
    return number


def _initial_environment():
    """
    Return the environment variables with which this process was started.
    """
    with contextlib.suppress(psutil.Error):  # a system that does not show them
        return psutil.Process().environ()
    return {}


def _positive(text):
    """
    Return the number above 0 that a text stands for, or None.
    """
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def _cgroups(root=_CGROUP):
    """
    Return the folders of this process's control group (version 2) and of all its parent groups.
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
    Return the numbers in a control group's file; [] if it is missing or holds "max", no limit.
    """
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []


def _cached_bytes(group):
    """
    Return the bytes of a control group's memory that cache files and were not used lately.

    The group counts them as used, but the system reclaims them as soon as a process needs memory.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in (group / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file":
                return int(value)
    return 0


def usable_cores() -> int:
    """
    Return the number of CPU cores that this process may use.

    The CPU affinity, the control group's quota and JupyterHub's limit are respected.
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


def memory() -> tuple[int, int]:
    """
    Return the bytes of memory that this process may use, and the bytes that are free now.
    """
    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    for group in _cgroups():
        limit = sum(_numbers(group / "memory.max")) or machine.total
        if limit < machine.total:
            used = sum(_numbers(group / "memory.current")) - _cached_bytes(group)
            total, free = min(total, limit), max(0, min(free, limit - used))
    limit = int(_positive(os.environ.get("MEM_LIMIT", "")) or total)
    if limit < total:  # else a control group has the same limit or a lower one, counted above
        total, free = limit, max(0, min(free, limit - _used_by_this_user()))
    return total, free


def memory_that_nobody_bounds() -> int | None:
    """
    Return the memory limit in bytes that JupyterHub sets, but that the system does not enforce.

    Return None if there is no limit, or if a control group enforces one.
    """
    limit = _positive(os.environ.get("MEM_LIMIT", ""))
    if limit is None or any(sum(_numbers(group / "memory.max")) for group in _cgroups()):
        return None
    return int(limit)


def _used_by_this_user():
    """
    Return the bytes of memory of all processes of this user. Shared memory is counted once.
    """
    num_bytes = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid():
                found = process.memory_full_info()
                num_bytes += getattr(found, "pss", found.uss)
    return num_bytes
