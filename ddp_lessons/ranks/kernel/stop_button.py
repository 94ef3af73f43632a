"""
The handler of Stop while ranks run a cell, and in the moment after.
"""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from IPython import get_ipython


class StopButton:
    """
    A context manager that turns SIGINT into an event while a cell runs.

    So Stop cannot interrupt the wait for ranks, their release or their regrouping half-way. Only
    the main thread gets signals, so in other threads this context manager does nothing.

    A learner may press Stop several times. The last SIGINT may then arrive after the cell, while
    IPython shows the message or ipykernel sends the reply. Python's own handler would raise right
    there: the message would be lost, or the cell would stay `[*]` for ever. So the kernel ignores
    SIGINT after the cell, until the learner's own code goes on, or ipykernel sets its handlers
    again at the end of the request.

    Args:
        on_stop: Function without arguments, which is called for each SIGINT.
    """

    def __init__(self, on_stop: Callable[[], object]) -> None:
        self._on_stop = on_stop
        self._previous: Callable[[int, FrameType | None], Any] | int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, lambda *_: self._on_stop())
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._previous is None:
            return
        shell = get_ipython()
        if self._previous is signal.default_int_handler and hasattr(shell, "kernel"):
            names = shell.user_global_ns
            late = _LateStopButton(names, _position_in(names, sys._getframe()))
            signal.signal(signal.SIGINT, late)
        else:
            signal.signal(signal.SIGINT, self._previous)


class _LateStopButton:
    """
    A handler of SIGINT that raises KeyboardInterrupt only once the learner's code has gone on.
    """

    def __init__(self, names, position):
        self._names = names
        self._position = position

    def __call__(self, signum, frame):
        position = _position_in(self._names, frame)
        if position is not None and position != self._position:
            signal.default_int_handler(signum, frame)


def _position_in(names, frame):
    # Return the innermost frame of the learner's code, and the instruction that it is at; or None.
    while frame is not None and frame.f_globals is not names:
        frame = frame.f_back
    return None if frame is None else (frame, frame.f_lasti)
