"""
A time limit for answers that a crowded machine stretches by the time for which it had no core free.
"""

import contextlib
import threading
import time

from ddp_lessons.ranks.system.thread_stats import main_cpu_s, waited_for_a_core_s

_LOOK_EVERY_S = 0.1


class Deadline:
    """
    Count the seconds of an answer, less those for which a rank waited for a core.

    Several threads of one rank may wait at a time, each a second a second. So those seconds may
    grow as fast as the clock, and a loop that does not end would have no end: what a rank has run
    counts in any case.

    Args:
        limit_s: Seconds that the answer may take.
        pids: Function that returns the process id of each rank.
        clock: Function that returns seconds.
        waited_s: Function from a process id to the seconds for which it has waited for a core.
        ran_s: Function from a process id to the seconds for which its main thread has run.
        before: What `waited_s` has given for each process id. Default: what it gives now.
    """

    def __init__(
        self,
        limit_s,
        pids,
        clock=time.monotonic,
        waited_s=waited_for_a_core_s,
        ran_s=main_cpu_s,
        before=None,
    ):
        self.limit_s = limit_s
        self._pids = pids
        self._clock = clock
        self._waited_s = waited_s
        self._ran_s = ran_s
        self._began_at = clock()
        self._before = self._read(waited_s) if before is None else before
        self._ran_before = self._read(ran_s)

    def anew(self, limit_s):
        """
        Return a deadline that begins now. To read once more what ranks have waited would take a
        file a thread; so what they waited since this one began is not counted either.
        """
        return Deadline(limit_s, self._pids, self._clock, self._waited_s, self._ran_s, self._before)

    @contextlib.contextmanager
    def paused(self):
        """
        Let time pass that does not count, for work in which no answer has a part.
        """
        began_at = self._clock()
        try:
            yield
        finally:
            self._began_at += self._clock() - began_at

    def _read(self, seconds_of):
        return {pid: seconds_of(pid) for pid in self._pids()}

    @property
    def spent_s(self):
        """
        Seconds that the machine could give so far: of the rank that waited longest. At least those
        for which a rank has run.
        """
        waited = [
            seconds - self._before.get(pid, 0.0)
            for pid, seconds in self._read(self._waited_s).items()
        ]
        # A rank that is new has run before it had an answer.
        ran = [
            seconds - self._ran_before.get(pid, seconds)
            for pid, seconds in self._read(self._ran_s).items()
        ]
        elapsed_s = self._clock() - self._began_at
        # What a thread had waited is gone when it ends, so a difference may be below 0.
        return max([elapsed_s - min(max([0.0, *waited]), elapsed_s), *ran])

    @property
    def is_over(self):
        """
        Whether nothing is left.
        """
        return self.spent_s >= self.limit_s

    def watch(self, on_end):
        """
        Call a function once nothing is left, from a thread. Returns an Event that stops the watch.
        """
        stopped = threading.Event()

        def look():
            # No less than the limit on the clock is spent before it: a look costs a file a thread.
            early_s = self.limit_s - (self._clock() - self._began_at)
            while not stopped.wait(max(early_s, _LOOK_EVERY_S)):
                early_s = 0.0
                if self.is_over:
                    on_end()
                    return

        threading.Thread(target=look, name="ddp-lessons-deadline", daemon=True).start()
        return stopped
