"""
Do something once a kernel has been idle for long enough: `start_ranks` parks ranks by it.
"""

import threading
import time


class ParkTimer:
    """
    Wait in a thread until nobody has run a cell for a while, then act once.

    A cell that begins while it acts waits for the end of that: it finds all or nothing.

    Args:
        events: IPython's events, which tell when a cell begins and ends.
        after_s: Seconds without a cell.
        has_work: Function that tells whether something still runs that no cell waits for. If so,
            the seconds are counted anew.
        act: Function that is called, in the thread.
        clock: Function that returns seconds.
    """

    def __init__(self, events, after_s, has_work, act, clock=time.monotonic):
        self._events = events
        self._after_s = after_s
        self._has_work = has_work
        self._act = act
        self._clock = clock
        self._idle_since = None  # None in a cell, as we are when ranks are started
        self._is_over = False
        self._changed = threading.Condition()
        self._listeners = {"pre_execute": self._begin, "post_execute": self._end}
        for name, listener in self._listeners.items():
            events.register(name, listener)
        threading.Thread(target=self._watch, name="ddp-lessons-idle", daemon=True).start()

    def close(self):
        """
        Act no more.
        """
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            while self._listeners:
                self._events.unregister(*self._listeners.popitem())

    def _begin(self):
        with self._changed:
            self._idle_since = None

    def _end(self):
        with self._changed:
            self._idle_since = self._clock()
            self._changed.notify_all()

    def _watch(self):
        with self._changed:
            while not self._is_over:
                self._changed.wait(self.look())

    def look(self):
        """
        Act if it is time. The thread looks again when a cell begins or ends.

        Returns:
            float or None: Seconds after which it looks as well; None in a cell.
        """
        if self._idle_since is None:
            return None
        left_s = self._idle_since + self._after_s - self._clock()
        if left_s > 0:
            return left_s
        if self._has_work():
            self._idle_since = self._clock()
            return self._after_s
        self._is_over = True
        self._act()
        return 0
