"""
The park timer: it calls a function once a kernel has been idle for a time. It parks idle ranks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.events import EventManager


class ParkTimer:
    """
    A timer that waits in a thread until no cell has run for a while, then calls a function once.

    A cell that begins during that call waits for its end. So the cell finds all ranks or none.

    Args:
        events: IPython's events, which report when a cell begins and ends.
        after_s: Seconds without a cell.
        has_work: Function that returns whether work still runs for which no cell waits. If so, the
            seconds are counted again from zero.
        act: Function to call, in the thread.
        clock: Function that returns seconds.
    """

    def __init__(
        self,
        events: EventManager,
        after_s: float,
        has_work: Callable[[], bool],
        act: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events = events
        self._after_s = after_s
        self._has_work = has_work
        self._act = act
        self._clock = clock
        # None in a cell: `start_ranks` makes this timer in one
        self._idle_since: float | None = None
        self._is_over = False
        self._changed = threading.Condition()
        self._listeners = {"pre_execute": self._begin, "post_execute": self._end}
        for name, listener in self._listeners.items():
            events.register(name, listener)
        threading.Thread(target=self._watch, name="ddp-lessons-idle", daemon=True).start()

    def close(self) -> None:
        """
        Stop the timer.
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

    def look(self) -> float | None:
        """
        Call the function if the time is over. The thread checks again when a cell begins or ends.

        Returns:
            float or None: Seconds until the next check, 0 after the call; None in a cell.
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
