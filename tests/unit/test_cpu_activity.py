"""
Whether ranks compute or are still, judged by CPU time, on a made-up clock and made-up processes.
"""

import pytest

from ddp_lessons.ranks.diagnosis.cpu_activity import BUSY_SHARE, CpuActivity


class Machine:
    """
    A clock, and processes that use as much CPU time as a test sets.
    """

    def __init__(self, num_processes=4):
        self.now = 100.0
        self.used = dict.fromkeys(range(num_processes), 5.0)
        self.progress = CpuActivity(
            pids=lambda: list(range(num_processes)),
            clock=lambda: self.now,
            cpu_seconds=self.used.get,
        )

    def run(self, seconds, share=0.0, every_s=0.2):
        """
        Let time pass in which process 0 uses a share of a core, and sample every `every_s` seconds.
        """
        for _ in range(round(seconds / every_s)):
            self.now += every_s
            self.used[0] += share * every_s
            self.progress.sample()


def test_progress_counts_the_seconds_of_standing_still():
    """
    Ranks without CPU time are still: they wait for a peer that never comes.
    """
    machine = Machine()
    machine.run(4.0)
    assert machine.progress.still_s == pytest.approx(4.0)


def test_progress_of_a_rank_that_computes():
    """
    One busy rank is enough for activity: the others wait for it.
    """
    machine = Machine()
    machine.run(10.0, share=0.9)
    assert machine.progress.still_s == pytest.approx(0.0)


def test_progress_sees_the_moment_of_the_last_work():
    """
    Seconds of stillness start at the last computation: here a cell computes and then hangs.
    """
    machine = Machine()
    machine.run(6.0, share=0.8)
    machine.run(2.0)
    assert machine.progress.still_s == pytest.approx(2.0)
    machine.run(0.2, share=1.0)
    assert machine.progress.still_s == pytest.approx(0.0)


def test_progress_is_not_fooled_by_heartbeats():
    """
    Heartbeats of idle ranks, a hundredth of a core each, do not count as computing.
    """
    machine = Machine()
    machine.run(5.0, share=0.04)
    assert machine.progress.still_s == pytest.approx(5.0)


def test_progress_takes_a_rank_on_a_crowded_machine_for_busy():
    """
    A rank that gets only a quarter of a core on a crowded machine counts as busy.
    """
    machine = Machine()
    machine.run(5.0, share=1.5 * BUSY_SHARE)
    assert machine.progress.still_s == pytest.approx(0.0)


def test_progress_overlooks_rounding():
    """
    Frequent samples measure correctly, although /proc counts CPU time in hundredths of a second, so
    that two samples may differ by one.
    """
    machine = Machine()
    machine.run(1.0, share=1.0, every_s=0.01)
    assert machine.progress.still_s == pytest.approx(1.0)


def test_progress_survives_a_process_that_ends():
    """
    The CPU time of a process that ends leaves the sum. That counts neither as work nor as an error.
    """
    machine = Machine()
    machine.run(1.0)
    machine.used[3] = None
    machine.run(1.0)
    assert machine.progress.still_s == pytest.approx(2.0)
    machine.run(0.4, share=0.9)
    assert machine.progress.still_s == pytest.approx(0.0)


def test_progress_without_processes():
    """
    Ranks on other machines cannot be measured, so they count as still.
    """
    machine = Machine(num_processes=0)
    machine.now += 3.0
    machine.progress.sample()
    assert machine.progress.still_s == pytest.approx(3.0)
