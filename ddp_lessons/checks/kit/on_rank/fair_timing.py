"""
How long an answer took, less what it waited for a core; and a wait for ranks that are timed so.

Legend: `watch` is a store of the check's, in which each rank tells of itself.
"""

import os
import time
from contextlib import contextmanager

from ddp_lessons.checks.kit.deadline import Deadline
from ddp_lessons.ranks.system.thread_stats import main_waited_s

_LOOK_EVERY_S = 0.01


@contextmanager
def timed(took):
    """
    Append to `took` what the block takes.

    That is a pair of seconds: by the clock, and without those for which the main thread was ready
    to run and had no core.
    """
    began_s, waited_s = time.monotonic(), main_waited_s(os.getpid())
    yield
    waited_s = main_waited_s(os.getpid()) - waited_s
    by_clock_s = time.monotonic() - began_s
    took.append((by_clock_s, by_clock_s - max(waited_s, 0.0)))


def tell_process(watch, rank):
    """
    Tell the others which process a rank is.
    """
    watch.set(f"process/{rank}", str(os.getpid()))


def tell_end(watch, rank):
    """
    Tell the others that a rank's answer has returned.
    """
    watch.set(f"ended/{rank}", "yes")


def processes_of(watch, ranks):
    """
    Return the process ids of ranks, as soon as all have told.
    """
    return [int(watch.get(f"process/{rank}")) for rank in ranks]


def wait_for_ends(watch, ranks, limit_s):
    """
    Wait until ranks have told of their ends, or have had the seconds in which they should have.
    """
    pids = processes_of(watch, ranks)
    deadline = Deadline(limit_s, lambda: pids, waited_s=main_waited_s)
    while not deadline.is_over and not watch.check([f"ended/{rank}" for rank in ranks]):
        time.sleep(_LOOK_EVERY_S)
