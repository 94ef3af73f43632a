"""
Tests of the watch over the memory of ranks where a hub limits it.
"""

import subprocess
import sys

import pytest

from ddp_lessons.ranks.supervisor import memory_watch
from ddp_lessons.ranks.supervisor.memory_watch import MemoryWatch

MIB = 2**20
HOLDS = "import sys\nkept = b'1' * (int(sys.argv[1]) << 20)\nprint(flush=True)\nsys.stdin.read()"


@pytest.fixture
def small_and_large():
    """
    Yield the process ids of two processes that hold 20 and 60 MiB.
    """
    running = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", HOLDS, str(mib)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for mib in (20, 60)
    ]  # fmt: skip
    for process in running:
        process.stdout.readline()
    yield [process.pid for process in running]
    for process in running:
        process.communicate()


def test_the_largest_rank_is_named_only_above_the_limit(monkeypatch, small_and_large):
    """
    Above the limit for all together the largest process is named; below it, or without one, none.
    """
    for limit, expected in ((50 * MIB, small_and_large[1]), (500 * MIB, None), (None, None)):
        monkeypatch.setattr(memory_watch, "memory_that_nobody_bounds", lambda limit=limit: limit)
        watch = MemoryWatch()
        assert watch.too_large(small_and_large) == expected
        assert (watch.wait_s is None) == (limit is None)


def test_between_two_looks_nothing_is_read(monkeypatch, small_and_large):
    """
    The watch looks once in its time, however often it is asked.
    """
    monkeypatch.setattr(memory_watch, "memory_that_nobody_bounds", lambda: 50 * MIB)
    watch = MemoryWatch()
    assert watch.too_large(small_and_large) == small_and_large[1]
    assert watch.too_large(small_and_large) is None


def test_a_process_that_has_ended_counts_nothing(monkeypatch, small_and_large):
    """
    A rank that ends while the watch looks is left out.
    """
    monkeypatch.setattr(memory_watch, "memory_that_nobody_bounds", lambda: 50 * MIB)
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert MemoryWatch().too_large([gone.pid, small_and_large[0]]) is None
