"""
A watchdog of twenty lines. It knows that nothing happens, and not whose fault that is.
"""

import faulthandler
import sys
import threading
from typing import IO


class NaiveWatchdog:
    """
    Wait for heartbeats in a thread. When none comes for too long, write all stacks, once.

    The thread wakes up while the main thread waits inside a collective, as that lets go of Python.
    Only for ranks that hang: in one that goes on, faulthandler may crash as it reads the stacks of
    all threads, if one of torch's just comes in.

    Args:
        limit_s: Seconds without a heartbeat after which it barks.
        file: An open file of the system that the stacks go to. Default: the error stream.

    Source: Python's documentation, `faulthandler`, whose `dump_traceback_later` is such a watchdog
    in one line. Lesson: 10_hangs.
    """

    def __init__(self, limit_s: float, file: IO[str] | IO[bytes] | None = None) -> None:
        self.limit_s, self.file = limit_s, file or sys.stderr
        self._has_beaten, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """
        Say that this rank is alive. Call it once a step.
        """
        self._has_beaten.set()

    def _watch(self):
        while self._has_beaten.wait(self.limit_s):
            if self._is_over:
                return
            self._has_beaten.clear()
        faulthandler.dump_traceback(self.file, all_threads=True)

    def close(self) -> None:
        """
        Let the watchdog go.
        """
        self._is_over = True
        self._has_beaten.set()
        self._thread.join()
