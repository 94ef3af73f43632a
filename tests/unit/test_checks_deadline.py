"""
The time of an answer: what the machine could give, and no starvation.
"""

import contextlib
import threading

import pytest
from waiting import HANGS_AFTER_S

from ddp_lessons.checks.kit.deadline import Deadline


class Told:
    """
    A clock and two ranks that wait for a core as they are told.
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
    Nobody waits for a core, so seconds are seconds.
    """
    told = Told()
    told.now += 5.9
    assert not told.deadline.is_over
    told.now += 0.2
    assert told.deadline.is_over


def test_deadline_does_not_count_what_a_rank_waited_for_a_core():
    """
    A right answer on a starved machine is right: no loop is to be found in it.
    """
    told = Told()
    told.now += 60.0
    told.waited_s[2] += 56.0
    assert told.deadline.spent_s == pytest.approx(4.0)
    assert not told.deadline.is_over
    told.now += 3.0
    assert told.deadline.is_over


def test_deadline_counts_what_a_rank_has_run():
    """
    Ranks spin, and all their threads wait for the cores that the spinning takes: their waits in
    sum grow as fast as the clock. The loop must end all the same.
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
    A rank was replaced meanwhile: it cannot have waited for longer than the check takes, and what
    it ran when it started is no answer's.
    """
    told = Told()
    told.now += 2.0
    told.waited_s[3] = 50.0
    told.ran_s[3] = 50.0
    assert told.deadline.spent_s == 0.0


def test_deadline_anew_begins_now_with_what_was_read_before():
    """
    A check prepares ranks, and runs an answer twice, perhaps. Each has a time of its own.
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
    Also one that an error ends.
    """
    told = Told()
    told.now += 2.0
    with contextlib.suppress(KeyError), told.deadline.paused():
        told.now += 60.0
        raise KeyError
    assert told.deadline.spent_s == 2.0


def test_deadline_calls_once_nothing_is_left():
    """
    The loop that does not end is ended; a watch that was stopped calls nobody.
    """
    ended = threading.Event()
    Deadline(0.2, list).watch(ended.set)
    assert ended.wait(HANGS_AFTER_S)
    never, told = threading.Event(), Told()
    told.deadline.watch(never.set).set()
    told.now += 60.0
    assert not never.wait(0.5)
