"""
A load-aware timeout: a time limit that counts only seconds in which no process waited for a core.
"""

import time
from collections.abc import Callable, Iterable

from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.thread_stats import wants_a_core


class LoadAwareTimeout:
    """
    A time limit for some processes, in seconds during which all of them sleep.

    While a process runs or waits for a core, it is only slow, and the time does not count.

    Args:
        limit_s: Seconds of sleep after which the limit is reached.
        pids: Function that returns the process ids to watch.
        clock: Function that returns seconds.
        wants: Function from a process id to whether the process runs or waits for a core.
    """

    def __init__(
        self,
        limit_s: float,
        pids: Callable[[], Iterable[int]],
        clock: Callable[[], float] = time.monotonic,
        wants: Callable[[int], bool] = wants_a_core,
    ) -> None:
        self._left_s = limit_s
        self._pids = pids
        self._clock = clock
        self._wants = wants
        self._looked_at = clock()

    @property
    def is_over(self) -> bool:
        """
        Whether the limit is reached. Read it in a loop, a few times a second or more.
        """
        now = self._clock()
        if now - self._looked_at >= clocks.PATIENCE_LOOK_EVERY_S:
            if not any(self._wants(pid) for pid in self._pids()):
                self._left_s -= min(now - self._looked_at, clocks.PATIENCE_LONGEST_GAP_S)
            self._looked_at = now
        return self._left_s < 0
