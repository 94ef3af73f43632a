"""
The sleep tracker: since when a rank's main thread sleeps or is halted, from look to look.
"""

import time
from collections.abc import Callable

from ddp_lessons.ranks.system.thread_stats import STOPPED, ThreadStats, thread_stats_of


class SleepTracker:
    """
    The thread stats of one rank, compared at each look with those of the look before.

    Args:
        pid: The rank's process id; None if the rank has no process.
        clock: Function that returns seconds.
        stats: Function from a process id to its ThreadStats or None.
    """

    def __init__(
        self,
        pid: int | None,
        clock: Callable[[], float] = time.monotonic,
        stats: Callable[[int], ThreadStats | None] = thread_stats_of,
    ) -> None:
        self.pid = pid
        self._clock = clock
        self._read = stats
        self.first = self.last = stats(pid)  # type: ignore[arg-type]  # None is no process
        self.began_at = self._looked_at = self._halted_at = clock()
        self._resting = self.last

    def look(self) -> None:
        """
        Read the thread stats once more.
        """
        before, now = self.last, self._clock()
        self.last = self._read(self.pid)  # type: ignore[arg-type]
        had_no_turn = before and self.last and before.main_turns == self.last.main_turns
        if not (had_no_turn and before.main_sleeps and self.last.main_sleeps):
            self.began_at, self._resting = now, self.last
        if not (had_no_turn and before.main_halt and self.last.main_halt):
            self._halted_at = now
        self._looked_at = now

    @property
    def is_known(self) -> bool:
        """
        Whether the system shows thread stats of this rank.
        """
        return self.last is not None

    @property
    def rest_s(self) -> float:
        """
        The seconds for which the main thread is known to have slept, without a single turn.
        """
        return self._looked_at - self.began_at

    @property
    def halt(self) -> str:
        """
        Words for what halts the main thread; "" if it had a turn since the look before.
        """
        return self.last.main_halt if self.last and self.halted_s > 0 else ""

    @property
    def is_stopped(self) -> bool:
        """
        Whether a signal had stopped the main thread at the last look.
        """
        return bool(self.last) and self.last.main_halt == STOPPED

    @property
    def halted_s(self) -> float:
        """
        The seconds for which the main thread is known to have been halted, without a single turn.
        """
        return self._looked_at - self._halted_at

    @property
    def nothing_stirs(self) -> bool:
        """
        Whether no other thread of the rank could still wake the main thread.

        This holds if all other threads sleep, and Gloo's loops have checked their sockets since the
        main thread began to sleep.
        """
        stats, resting = self.last, self._resting
        if stats is None or resting is None:
            return stats is None
        looked = (
            stats.gloo_turns is None
            or resting.gloo_turns is None
            or stats.gloo_turns - resting.gloo_turns >= 2
        )
        return stats.others_sleep and looked

    @property
    def all_sleep(self) -> bool:
        """
        Whether all threads sleep, apart from the agent's thread and Gloo's loops.
        """
        stats = self.last
        return bool(stats and stats.main_sleeps and stats.others_sleep and stats.engine_sleeps)

    @property
    def cpu_s(self) -> float:
        """
        The seconds of CPU time that the main thread has used since the first look.
        """
        return self.last.main_cpu_s - self.first.main_cpu_s if self.last and self.first else 0.0

    def turns_since(self, stats: ThreadStats | None) -> int:
        """
        Return the number of turns that the main thread has had since earlier ThreadStats.
        """
        return self.last.main_turns - stats.main_turns if self.last and stats else 0

    @property
    def agent_turns(self) -> int:
        """
        The number of voluntary turns of the agent's thread since the first look.
        """
        return self.last.agent_turns - self.first.agent_turns if self.last and self.first else 0
