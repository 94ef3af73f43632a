"""
Threads of an answer that start late, so that an answer that does not wait for them is caught.

A thread that writes a file finishes within a millisecond. Without the delay it would mostly have
finished when the answer returns.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ddp_lessons.checks.kit.deadline import Deadline
from ddp_lessons.ranks.system.thread_stats import main_waited_s

_LATE_S, _LOOK_EVERY_S, _MOST_S = 0.2, 0.02, 5.0


@contextmanager
def delayed_threads() -> Iterator[Callable[[], int]]:
    """
    Delay each thread that starts in a `with` block by 0.2 s.

    Seconds for which the main thread waits for a core do not count.

    Yields:
        Function that returns how many threads have not begun yet, and then waits for them.
    """
    start, ends = threading.Thread.start, threading.Event()
    made, begun, ours = [], [], threading.current_thread()

    def start_late(thread):
        if threading.current_thread() not in (ours, *made):  # the rank's own, such as its agent's
            start(thread)
            return
        run = thread.run
        # On a busy machine the answer may have no core in which to return before the delay ends.
        late = Deadline(_LATE_S, lambda: [os.getpid()], waited_s=main_waited_s)

        def run_late():
            while not late.is_over and not ends.wait(_LOOK_EVERY_S):
                pass
            begun.append(thread)
            run()

        thread.run = run_late
        made.append(thread)
        start(thread)

    def num_left():
        left = [thread for thread in made if thread not in begun]
        ends.set()
        for thread in left:
            thread.join(_MOST_S)
        return len(left)

    threading.Thread.start = start_late  # type: ignore[method-assign]
    try:
        yield num_left
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        ends.set()
