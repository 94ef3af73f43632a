"""
A time limit that a crowded machine stretches: only seconds in which nobody wanted a core count.
"""

import time

from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.thread_stats import wants_a_core


class LoadAwareTimeout:
    """
    Count the seconds in which all of some processes slept, and so were not merely slow.

    Args:
        limit_s: Seconds of sleep after which patience is at an end.
        pids: Function that returns the process ids to watch.
        clock: Function that returns seconds.
        wants: Function that tells whether a process runs or waits for a core.
    """

    def __init__(self, limit_s, pids, clock=time.monotonic, wants=wants_a_core):
        self._left_s = limit_s
        self._pids = pids
        self._clock = clock
        self._wants = wants
        self._looked_at = clock()

    @property
    def is_over(self):
        """
        Whether they have slept for so long. Ask again and again, a few times a second or more.
        """
        now = self._clock()
        if now - self._looked_at >= clocks.PATIENCE_LOOK_EVERY_S:
            if not any(self._wants(pid) for pid in self._pids()):
                self._left_s -= min(now - self._looked_at, clocks.PATIENCE_LONGEST_GAP_S)
            self._looked_at = now
        return self._left_s < 0
