"""
The time that an answer took, less its waits for a core; and a wait for ranks that are timed so.

Legend: `watch` is a store of the check, in which each rank sets its process id and its end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ddp_lessons.checks.kit.deadline import Deadline
from ddp_lessons.ranks.system.thread_stats import main_waited_s

if TYPE_CHECKING:
    import torch.distributed as dist

_LOOK_EVERY_S = 0.01


@contextmanager
def timed(took: list[tuple[float, float]]) -> Iterator[None]:
    """
    Append the duration of a `with` block to the list `took`.

    The duration is a pair of seconds: those on the clock, and the same without those for which the
    main thread was ready to run and had no core.
    """
    began_s, waited_s = time.monotonic(), main_waited_s(os.getpid())
    yield
    waited_s = main_waited_s(os.getpid()) - waited_s
    by_clock_s = time.monotonic() - began_s
    took.append((by_clock_s, by_clock_s - max(waited_s, 0.0)))


def tell_process(watch: dist.Store, rank: int) -> None:
    """
    Set this rank's process id in the store.
    """
    watch.set(f"process/{rank}", str(os.getpid()))


def tell_end(watch: dist.Store, rank: int) -> None:
    """
    Set in the store that this rank's answer has returned.
    """
    watch.set(f"ended/{rank}", "yes")


def processes_of(watch: dist.Store, ranks: Iterable[int]) -> list[int]:
    """
    Return the process ids of ranks. Block until all of them have set theirs.
    """
    return [int(watch.get(f"process/{rank}")) for rank in ranks]


def wait_for_ends(watch: dist.Store, ranks: Sequence[int], limit_s: float) -> None:
    """
    Wait until ranks have set their ends, or until `limit_s` seconds have passed.

    Seconds for which the main thread of such a rank waited for a core do not count.
    """
    pids = processes_of(watch, ranks)
    deadline = Deadline(limit_s, lambda: pids, waited_s=main_waited_s)
    while not deadline.is_over and not watch.check([f"ended/{rank}" for rank in ranks]):
        time.sleep(_LOOK_EVERY_S)
