"""
The time limit of an answer: seconds in which its ranks waited for a core do not count.
"""

import contextlib
import os
import threading
from types import SimpleNamespace

import pytest
from waiting import HANGS_AFTER_S

from ddp_lessons.checks.kit import checking
from ddp_lessons.checks.kit.deadline import Deadline


class Told:
    """
    A clock and two ranks whose running and waiting times a test sets.
    """

    def __init__(self, limit_s=6.0):
        self.now, self.waited_s = 100.0, {1: 5.0, 2: 7.0}
        self.ran_s = {1: 3.0, 2: 2.0}
        self.deadline = Deadline(
            limit_s,
            lambda: list(self.waited_s),
            lambda: self.now,
            self.waited_s.get,
            lambda pid: self.ran_s.get(pid, 0.0),
        )


def test_deadline_on_a_quiet_machine_is_a_time_limit():
    """
    On a quiet machine seconds count in full, because no process waits for a core.
    """
    told = Told()
    told.now += 5.9
    assert not told.deadline.is_over
    told.now += 0.2
    assert told.deadline.is_over


def test_deadline_does_not_count_what_a_rank_waited_for_a_core():
    """
    Seconds in which a rank waited for a core do not count, because a right answer on a starved
    machine has no endless loop.
    """
    told = Told()
    told.now += 60.0
    told.waited_s[2] += 56.0
    assert told.deadline.spent_s == pytest.approx(4.0)
    assert not told.deadline.is_over
    told.now += 3.0
    assert told.deadline.is_over


def test_the_deadline_of_a_check_reads_the_kernel_too():
    """
    A check's time limit reads the kernel, too. In a crowd the kernel takes longer to find that
    ranks wait for ever, and a deadlock would be called late.
    """
    ranks = SimpleNamespace(supervisor=SimpleNamespace(pids={0: 11, 1: 12}))
    assert checking._processes_of(ranks) == [os.getpid(), 11, 12]


def test_deadline_counts_what_a_rank_has_run():
    """
    The seconds that a rank ran count also while others wait. Ranks that spin make each other wait
    for cores, so their waits add up as fast as the clock, but the loop must still end.
    """
    told = Told()
    told.now += 60.0
    told.waited_s[1] += 90.0
    told.ran_s[1] += 5.9
    assert not told.deadline.is_over
    told.ran_s[1] += 0.2
    assert told.deadline.is_over


def test_deadline_of_a_rank_that_is_new():
    """
    A rank that was replaced cannot have waited longer than the check has lasted, and the time that
    it ran at its start is not the answer's.
    """
    told = Told()
    told.now += 2.0
    told.waited_s[3] = 50.0
    told.ran_s[3] = 50.0
    assert told.deadline.spent_s == 0.0


def test_deadline_anew_begins_now_with_what_was_read_before():
    """
    A renewed deadline starts at 0 and keeps the earlier readings. A check prepares ranks, and may
    run an answer twice, and each run has its own limit.
    """
    told = Told()
    told.now += 5.0
    told.ran_s[1] += 5.0
    anew = told.deadline.anew(2.0)
    assert anew.spent_s == 0.0
    told.now += 3.0
    assert anew.is_over
    told.waited_s[1] += 1.5
    assert anew.spent_s == pytest.approx(1.5)


def test_deadline_does_not_count_a_pause():
    """
    A pause does not count, also if an error ends it.
    """
    told = Told()
    told.now += 2.0
    with contextlib.suppress(KeyError), told.deadline.paused():
        told.now += 60.0
        raise KeyError
    assert told.deadline.spent_s == 2.0


def test_deadline_calls_once_nothing_is_left():
    """
    The deadline calls its function once its time is used up, to end an endless loop. A stopped
    watch calls nothing.
    """
    ended = threading.Event()
    Deadline(0.2, list).watch(ended.set)
    assert ended.wait(HANGS_AFTER_S)
    never, told = threading.Event(), Told()
    told.deadline.watch(never.set).set()
    told.now += 60.0
    assert not never.wait(0.5)
