"""
Background activity of a rank that waits: the learner's threads and processes count, those of tools
do not.
"""

import contextlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.ranks.rank.background_activity import PROCESS, THREAD, BackgroundActivity


@contextlib.contextmanager
def running(thread, gate):
    """
    Run a thread until the block ends. The thread must end when the gate is set.
    """
    thread.start()
    try:
        yield
    finally:
        gate.set()
        thread.join(HANGS_AFTER_S)
        assert not thread.is_alive()


def test_helpers_are_threads_that_came_later():
    """
    Threads that started after the first cell count. The engine's own threads exist before it, so
    they do not.
    """
    gate = threading.Event()
    with running(threading.Thread(target=gate.wait), gate):
        before = BackgroundActivity()
        assert before.that_may_act() == []
        other = threading.Event()
        with running(threading.Thread(target=other.wait), other):
            assert before.that_may_act() == [THREAD]
        assert before.that_may_act() == []


def test_helpers_know_a_timer():
    """
    A timer counts, although it waits in threading's own code without a line of the learner's on its
    stack.
    """
    helpers = BackgroundActivity()
    timer = threading.Timer(600, print)
    timer.start()
    try:
        assert helpers.that_may_act() == [THREAD]
    finally:
        timer.cancel()
        timer.join(HANGS_AFTER_S)


def test_helpers_count_a_pool_only_while_it_works():
    """
    A pool counts only while it works. An executor keeps its threads for ever, and idle ones would
    excuse every later deadlock.
    """
    helpers, gate = BackgroundActivity(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        job = pool.submit(gate.wait)
        wait_until(lambda: helpers.that_may_act() == [THREAD], HANGS_AFTER_S, "the pool to work")
        gate.set()
        job.result(HANGS_AFTER_S)
        wait_until(lambda: helpers.that_may_act() == [], HANGS_AFTER_S, "the pool to be idle")
    gate.clear()
    with ThreadPool(2) as pool:
        wait_until(lambda: helpers.that_may_act() == [], HANGS_AFTER_S, "the pool to be idle")
        job = pool.apply_async(gate.wait)
        wait_until(lambda: helpers.that_may_act() == [THREAD], HANGS_AFTER_S, "the pool to work")
        gate.set()
        job.get(HANGS_AFTER_S)


def test_helpers_spare_the_threads_of_tools():
    """
    Threads of a progress bar, a loader or a debugger do not count: they never send what a rank
    waits for.
    """
    gate = threading.Event()

    def work():
        gate.wait()

    work.__module__ = "torch.utils.data._utils.pin_memory"
    helpers = BackgroundActivity()
    with running(threading.Thread(target=work), gate):
        assert helpers.that_may_act() == []
    gate.clear()
    work.__module__ = "torch.distributed.distributed_c10d"  # a learner's thread that calls torch
    with running(threading.Thread(target=work), gate):
        assert helpers.that_may_act() == [THREAD]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are read from /proc")
def test_helpers_are_processes_that_still_run():
    """
    A program that a rank has started counts while it runs, because it may write the file or open
    the port for which the rank waits.
    """
    helpers = BackgroundActivity()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert helpers.that_may_act() == [PROCESS]
        child.stdin.close()
        wait_until(lambda: helpers.that_may_act() == [], HANGS_AFTER_S, "the end of the child")
        child.wait(HANGS_AFTER_S)


def test_helpers_spare_the_workers_of_a_loader():
    """
    Workers of a DataLoader do not count: they only load data for the rank, or wait for the next
    epoch.
    """
    from torch.utils.data import DataLoader

    helpers = BackgroundActivity()
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 4
    assert helpers.that_may_act() == []
    loader._iterator._shutdown_workers()
