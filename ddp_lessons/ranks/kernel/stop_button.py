"""
What Stop does while ranks run a cell, and in the moment after.
"""

import signal
import sys
import threading

from IPython import get_ipython


class StopButton:
    """
    Turn SIGINT into an event for the length of a cell, so that Stop can never tear the waiting,
    the releasing or the rejoining in two. Only the main thread gets signals.

    Whoever presses Stop three times has the last one arrive when all is over, while IPython writes
    the message down or ipykernel sends the reply. Python's own handler would raise right there: the
    message is lost, or the cell stays `[*]` for ever. So a kernel ignores Stop from then on, until
    the learner's own code goes on, or ipykernel sets its handlers anew at the request's end.

    Args:
        on_stop: Called, without arguments, for each Stop.
    """

    def __init__(self, on_stop):
        self._on_stop = on_stop
        self._previous = None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, lambda *_: self._on_stop())
        return self

    def __exit__(self, *exc_info):
        if self._previous is None:
            return
        shell = get_ipython()
        if self._previous is signal.default_int_handler and hasattr(shell, "kernel"):
            names = shell.user_global_ns
            late = _LateStopButton(names, _place_in(names, sys._getframe()))
            signal.signal(signal.SIGINT, late)
        else:
            signal.signal(signal.SIGINT, self._previous)


class _LateStopButton:
    """
    Raise KeyboardInterrupt as Python does, unless the learner's code has not moved since.
    """

    def __init__(self, names, snapshot):
        self._names = names
        self._place = snapshot

    def __call__(self, signum, frame):
        snapshot = _place_in(self._names, frame)
        if snapshot is not None and snapshot != self._place:
            signal.default_int_handler(signum, frame)


def _place_in(names, frame):
    # The innermost call out of the learner's code: its frame, and the instruction it is at.
    while frame is not None and frame.f_globals is not names:
        frame = frame.f_back
    return None if frame is None else (frame, frame.f_lasti)
