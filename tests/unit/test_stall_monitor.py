"""
The stall monitor's decisions from snapshots that may arrive late, on made-up ranks.
"""

from concurrent.futures import Future
from dataclasses import asdict

import pytest
from fake_ranks import MadeUpRanks
from fake_snapshots import at, finished, receiving, reducing

from ddp_lessons.ranks.diagnosis.stall_detection import StallDetector
from ddp_lessons.ranks.kernel import stall_monitor as module
from ddp_lessons.ranks.kernel.stall_monitor import StallMonitor
from ddp_lessons.ranks.system import clocks

RUNNING = [2, 3]
IN_THE_SECOND = reducing(2)
AWAITS_A_KEY = at(3, "store.get('a')", "store")
SLEEPS = at(2, "time.sleep(0.01)")
AWAITS_RANK_2 = receiving(2)


class Watch:
    """
    A stall monitor of a cell that ranks 2 and 3 of four still run. It polls every fifth of a
    second.

    Attributes:
        ranks: The made-up ranks.
        stall_monitor: The StallMonitor.
        asked: (rank, Future) of every request that has no answer yet.
    """

    def __init__(self):
        self.ranks = MadeUpRanks()
        self.ranks.dead = []
        self.ranks.engines.hosts = {}
        self.ranks.control.ask_snapshots = self._ask
        self.ranks.control.snapshots = lambda ranks: {rank: finished() for rank in ranks}
        self.asked = []
        self.stall_monitor = StallMonitor(self.ranks, "", range(4), self._ticking)
        self.stall_monitor._standstill = StallDetector(
            len(self.ranks),
            lambda: self.ranks.supervisor.pids,
            clock=self.ranks.clock,
            stats=self.ranks.all_stats.get,
            cpu_seconds=self.ranks.cpu_s.get,
        )

    def _ticking(self):
        # A poll waits for answers until a deadline, so the clock advances a little at each reading.
        self.ranks.now += 0.001
        return self.ranks.now

    def _ask(self, ranks):
        futures = {rank: Future() for rank in ranks}
        self.asked += futures.items()
        return futures

    def answer(self, snapshot):
        """
        Answer all requests with this snapshot.
        """
        for _, future in self.asked:
            future.set_result({"content": {"answer": asdict(snapshot)}})
        self.asked.clear()

    def looks(self, count, each=lambda: None, fault_at=None):
        """
        Poll `count` times. Return how many polls passed before the ranks were released.
        """
        for number in range(count):
            self.ranks.now += 0.2
            self.ranks.gloo_looks()
            each()
            self.stall_monitor.look(RUNNING, fault_at)
            if self.stall_monitor.unblocker:
                return number
        return count

    def turns(self, count):
        """
        Give the main threads of the running ranks some turns.
        """
        for rank in RUNNING:
            before = self.ranks.all_stats[100 + rank].main_turns
            self.ranks.change(rank, main_turns=before + count)


@pytest.fixture
def watch(monkeypatch):
    """
    Return a Watch whose clock advances with its polls.
    """
    watch = Watch()
    monkeypatch.setattr(module, "Unblocker", lambda ranks, limits: "freeing")
    monkeypatch.setattr(module, "snapshot_from_outside", lambda *args: None)
    monkeypatch.setattr(clocks, "POLL_S", 0)
    return watch


def test_deadlock_is_told_though_the_first_answers_come_late(watch):
    """
    A deadlock is found although the first snapshots arrive late: the ranks polled a store, then
    called the collective, and only then could an agent answer.
    """
    watch.looks(2, lambda: watch.turns(20))
    watch.turns(3)  # they leave the loop and enter all_reduce
    watch.looks(2)
    assert not watch.stall_monitor.deadlocked
    assert watch.looks(10, lambda: watch.answer(IN_THE_SECOND)) < 8
    assert watch.stall_monitor.diagnosis.culprits == (0, 1)


@pytest.mark.parametrize("still_waiting", [[], [2]], ids=["no rank", "one rank"])
def test_stop_while_a_deadlock_is_released_keeps_the_diagnosis(watch, still_waiting):
    """
    A Stop while a deadlock is being released keeps its diagnosis. Released ranks no longer wait, so
    new snapshots would explain nothing, or name only the ranks that were not yet released.
    """
    watch.looks(2, lambda: watch.turns(20))
    watch.looks(10, lambda: watch.answer(IN_THE_SECOND))
    assert watch.stall_monitor.deadlocked
    sentence = watch.stall_monitor.diagnosis.sentence
    watch.ranks.control.pids = lambda ranks: []
    watch.stall_monitor.stop(still_waiting)
    assert watch.stall_monitor.diagnosis.sentence == sentence != ""


def test_polls_of_a_loop_count_for_no_wait_that_came_after_it(watch):
    """
    The turns of an earlier loop do not count as polls of a later wait: after thirty turns in a loop
    with a sleep, a store's key may come soon.
    """
    watch.looks(2, lambda: watch.turns(20))
    watch.looks(3, lambda: watch.turns(20))
    watch.answer(AWAITS_A_KEY)
    watch.turns(1)
    watch.looks(1)
    assert not watch.stall_monitor.deadlocked
    assert watch.looks(20, lambda: (watch.turns(20), watch.answer(AWAITS_A_KEY))) < 8


def test_answer_from_before_the_rest_confirms_nothing(watch):
    """
    A snapshot from before the current rest confirms no deadlock: the rank was in the collective,
    finished it, and now sleeps.
    """
    watch.looks(1, lambda: watch.turns(20))
    watch.looks(1, lambda: watch.turns(20))
    asked = list(watch.asked)
    watch.asked.clear()
    watch.turns(1)  # they leave the collective and enter a long sleep
    watch.looks(1)
    watch.ranks.now += 1.0  # there is no poll for a second
    for _, future in asked:
        future.set_result({"content": {"answer": asdict(IN_THE_SECOND)}})
    watch.looks(1)
    assert not watch.stall_monitor.deadlocked
    assert watch.looks(30, lambda: watch.answer(SLEEPS)) == 30


def test_stall_is_told_once_and_after_five_seconds(watch, capsys):
    """
    A stall is reported once, after five seconds, and the cell goes on: rank 2 sleeps and rank 3
    waits for it, which may be intended.
    """

    def answer():
        for rank, future in watch.asked:
            future.set_result(
                {"content": {"answer": asdict(SLEEPS if rank == 2 else AWAITS_RANK_2)}}
            )
        watch.asked.clear()

    began_at, told = watch.ranks.now, ""
    while not told:
        watch.looks(1, answer)
        told = capsys.readouterr().out
    assert clocks.STALL_REPORT_S < watch.ranks.now - began_at < clocks.STALL_REPORT_S + 0.6
    assert told.startswith("No progress for 5 s: rank 2 is at line 2: time.sleep(0.01); ")
    assert watch.looks(60, answer) == 60
    assert capsys.readouterr().out == ""


def test_ranks_are_released_once_each_has_had_a_chance_to_fail_itself(watch):
    """
    Ranks are released after an error only when each has had the chance to reach its own error. Rank
    0 raised, rank 3 waits for it, and rank 2 is starved.
    """
    watch.ranks.change(2, main_sleeps=False)
    fault_at = watch.ranks.now
    assert watch.looks(300, lambda: watch.answer(IN_THE_SECOND), fault_at) == 300
    watch.ranks.change(2, main_cpu_s=1.0 + clocks.CHANCE_CPU_S)
    assert watch.looks(10, lambda: watch.answer(IN_THE_SECOND), fault_at) < 2


def test_a_rank_whose_disk_answers_late_is_in_no_deadlock(watch, capsys):
    """
    A rank that waits for a disk is in no deadlock: rank 2 writes a key to a store on a slow disk,
    and rank 3 waits for that key.
    """
    watch.ranks.gloo_looks = lambda: None  # there is no group yet
    for rank in RUNNING:
        watch.ranks.change(rank, gloo_turns=None)
    watch.ranks.change(2, main_sleeps=False, main_halt="waiting for a disk")
    assert watch.looks(60, lambda: watch.answer(AWAITS_A_KEY)) == 60
    assert "rank 2 is waiting for a disk at line 3: store.get('a')" in capsys.readouterr().out
    watch.ranks.change(2, main_sleeps=True, main_halt="", main_turns=11)
    watch.looks(1)
    assert watch.looks(40, lambda: (watch.turns(20), watch.answer(AWAITS_A_KEY))) < 10
