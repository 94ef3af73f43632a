"""
The memory of a supervisor's ranks together, where a hub limits it and the system does not.

`course.singleuser` holds each process to that limit. Several ranks that are each below it could
still take the memory of all other learners.
"""

import contextlib
import time
from collections.abc import Collection

import psutil

from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.resource_limits import memory_that_nobody_bounds


class MemoryWatch:
    """
    The limit for the ranks of one supervisor, and the time of the next look at their memory.

    Attributes:
        wait_s: Seconds between two looks; None if there is no limit, so no look is needed.
    """

    def __init__(self) -> None:
        self._limit = memory_that_nobody_bounds()
        self.wait_s = None if self._limit is None else clocks.MEMORY_LOOK_EVERY_S
        self._next_s = time.monotonic()

    def too_large(self, pids: Collection[int]) -> int | None:
        """
        Return the rank that takes most memory, if all of them together are above the limit.

        Args:
            pids: Process ids of the ranks.

        Returns:
            int or None: A process id; None if the limit holds, or if it is not yet time to look.
        """
        if self._limit is None or time.monotonic() < self._next_s:
            return None
        self._next_s = time.monotonic() + clocks.MEMORY_LOOK_EVERY_S
        # RSS counts shared memory once for each process: cheap to read, and never too small.
        if sum(_bytes_of(pids, _rss).values()) <= self._limit:
            return None
        own = _bytes_of(pids, _pss)
        return max(own, key=own.__getitem__) if sum(own.values()) > self._limit else None


def _bytes_of(pids, measure):
    found = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # the rank has just ended
            found[pid] = measure(psutil.Process(pid))
    return found


def _rss(process):
    return process.memory_info().rss


def _pss(process):
    found = process.memory_full_info()
    return getattr(found, "pss", found.uss)
