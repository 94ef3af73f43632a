"""
A time limit for answers. It does not count the time for which the machine had no core free.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from ddp_lessons.ranks.system.thread_stats import main_cpu_s, waited_for_a_core_s

_LOOK_EVERY_S = 0.1


class Deadline:
    """
    A clock for an answer, less the seconds for which a rank or the kernel waited for a core.

    The waits of a rank are summed over its threads, so they may grow as fast as the clock, and an
    endless loop would never reach the limit. Therefore the seconds for which a rank's main thread
    has run always count.

    Args:
        limit_s: Seconds that the answer may take.
        pids: Function without arguments that returns the process ids of the ranks and the kernel.
        clock: Function that returns seconds.
        waited_s: Function from a process id to the seconds for which it has waited for a core.
        ran_s: Function from a process id to the seconds for which its main thread has run.
        before: {process id: seconds}, an earlier reading of `waited_s`. Default: a reading of now.
    """

    def __init__(
        self,
        limit_s: float,
        pids: Callable[[], Iterable[int]],
        clock: Callable[[], float] = time.monotonic,
        waited_s: Callable[[int], float] = waited_for_a_core_s,
        ran_s: Callable[[int], float] = main_cpu_s,
        before: Mapping[int, float] | None = None,
    ) -> None:
        self.limit_s = limit_s
        self._pids = pids
        self._clock = clock
        self._waited_s = waited_s
        self._ran_s = ran_s
        self._began_at = clock()
        self._before = self._read(waited_s) if before is None else before
        self._ran_before = self._read(ran_s)

    def anew(self, limit_s: float) -> "Deadline":
        """
        Return a Deadline that begins now.

        A new reading of what ranks have waited would cost one file for each thread, so the new
        Deadline subtracts the waits since this one began.
        """
        return Deadline(limit_s, self._pids, self._clock, self._waited_s, self._ran_s, self._before)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """
        Let the time of a `with` block not count, for work in which the answer has no part.
        """
        began_at = self._clock()
        try:
            yield
        finally:
            self._began_at += self._clock() - began_at

    def _read(self, seconds_of):
        return {pid: seconds_of(pid) for pid in self._pids()}

    @property
    def spent_s(self) -> float:
        """
        The seconds that count so far: those on the clock, less the longest waits of a rank.

        They are at least the seconds for which one rank's main thread has run.
        """
        waited = [
            seconds - self._before.get(pid, 0.0)
            for pid, seconds in self._read(self._waited_s).items()
        ]
        # A new process is not counted: it has run before it got an answer.
        ran = [
            seconds - self._ran_before.get(pid, seconds)
            for pid, seconds in self._read(self._ran_s).items()
        ]
        elapsed_s = self._clock() - self._began_at
        # A thread's waits leave the sum when it ends, so a difference may be below 0.
        return max([elapsed_s - min(max([0.0, *waited]), elapsed_s), *ran])

    @property
    def is_over(self) -> bool:
        """
        Whether the limit has been reached.
        """
        return self.spent_s >= self.limit_s

    def watch(self, on_end: Callable[[], object]) -> threading.Event:
        """
        Call a function from a thread once the limit is reached, and return an Event.

        Setting the Event stops the watch.
        """
        stopped = threading.Event()

        def look():
            # The limit is not reached before the clock says so: until then do not look, since each
            # look reads one file for each thread.
            early_s = self.limit_s - (self._clock() - self._began_at)
            while not stopped.wait(max(early_s, _LOOK_EVERY_S)):
                early_s = 0.0
                if self.is_over:
                    on_end()
                    return

        threading.Thread(target=look, name="ddp-lessons-deadline", daemon=True).start()
        return stopped
