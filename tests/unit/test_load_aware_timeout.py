"""
Load-aware timeouts: only seconds count in which all processes were seen asleep.
"""

import pytest

from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout


class Watched:
    """
    A clock, and processes that want a core or sleep as a test sets them.
    """

    def __init__(self, limit_s):
        self.now, self.wants = 10.0, set()
        self.time_limit = LoadAwareTimeout(
            limit_s,
            lambda: [1, 2],
            clock=lambda: self.now,
            wants=lambda pid: pid in self.wants,
        )

    def is_over_after(self, seconds, every_s=0.1):
        """
        Let time pass, and return whether the timeout ended at one of the polls.
        """
        for _ in range(round(seconds / every_s)):
            self.now += every_s
            if self.time_limit.is_over:
                return True
        return False


def test_patience_ends_with_those_who_sleep():
    """
    On a quiet machine the timeout is an ordinary time limit.
    """
    watched = Watched(2.0)
    assert not watched.is_over_after(1.9)
    assert watched.is_over_after(0.3)


@pytest.mark.parametrize("who", [1, 2])
def test_patience_waits_for_whoever_waits_for_a_core(who):
    """
    The timeout does not end while a process waits for a core, however crowded the machine is.
    """
    watched = Watched(2.0)
    watched.wants = {who}
    assert not watched.is_over_after(600.0)
    watched.wants = set()
    assert not watched.is_over_after(1.9)
    assert watched.is_over_after(0.3)


def test_patience_does_not_count_its_own_starvation():
    """
    The timeout does not count a long gap between two polls, because the polling process may have
    been starved itself.
    """
    watched = Watched(2.0)
    watched.now += 3600.0
    assert not watched.time_limit.is_over
    assert watched.is_over_after(2.0)


def test_patience_that_is_asked_very_often():
    """
    Frequent polls, such as every 2 ms, lose no time.
    """
    watched = Watched(1.0)
    assert not watched.is_over_after(0.9, every_s=0.002)
    assert watched.is_over_after(0.2, every_s=0.002)
