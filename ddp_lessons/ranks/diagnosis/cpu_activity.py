"""
CPU time of processes, by which a cell that computes is told from one that stands still.
"""

import time
from collections.abc import Callable, Iterable

from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.processes import cpu_seconds, descendants_of, tree_cpu_seconds

BUSY_SHARE = 0.2
"""
Share of one core above which a set of ranks counts as computing. A rank that computes gets far
more, even where four ranks share two cores. Idle ranks use less, including their heartbeats and
their answers to our requests.
"""


class DescendantsCpu:
    """
    The CPU time of a process's descendants, whose list is renewed only now and then.

    Args:
        clock: Function that returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # process id -> when its descendants were looked up, and their process ids
        self._families: dict[int, tuple[float, list[int]]] = {}

    def __call__(self, pid: int) -> float:
        """
        Return the seconds of CPU time that all descendants of a process have used.
        """
        looked_up_at, family = self._families.get(pid, (None, ()))
        if looked_up_at is None or self._clock() - looked_up_at >= clocks.CHILDREN_LOOK_EVERY_S:
            family = descendants_of(pid)
            self._families[pid] = (self._clock(), family)
        return sum(cpu_seconds(descendant) or 0.0 for descendant in family)


class CpuActivity:
    """
    The CPU time that a set of processes and their children use over time.

    Args:
        pids: Function that returns the process ids to watch.
        clock: Function that returns seconds.
        cpu_seconds: Function from a process id to its CPU seconds, or None.
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]],
        clock: Callable[[], float] = time.monotonic,
        cpu_seconds: Callable[[int], float | None] = tree_cpu_seconds,
    ) -> None:
        self._pids = pids
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._last: tuple[float, float] | None = None  # when, and the CPU time until then
        self.moved = False
        self._still_since = clock()
        self.sample()

    def sample(self) -> None:
        """
        Record the CPU time used so far. Call it a few times a second.
        """
        now, used = self._clock(), self._used()
        self.moved = self._last is None or self._is_busy(self._last, (now, used))
        if self.moved:
            self._still_since = now
        self._last = (now, used)

    def _used(self) -> float:
        return sum(self._cpu_seconds(pid) or 0.0 for pid in self._pids())

    @staticmethod
    def _is_busy(before: tuple[float, float], after: tuple[float, float]) -> bool:
        elapsed = after[0] - before[0]
        return after[1] - before[1] > max(clocks.CPU_ROUNDING_S, BUSY_SHARE * elapsed)

    @property
    def still_s(self) -> float:
        """
        Seconds for which the processes have computed nothing.
        """
        return self._clock() - self._still_since
