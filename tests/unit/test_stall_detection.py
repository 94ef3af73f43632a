"""
Whether a cell is stalled or only slow, on made-up ranks.
"""

import pytest
from fake_ranks import MadeUpRanks

from ddp_lessons.ranks.diagnosis.stall_detection import StallDetector
from ddp_lessons.ranks.messages.snapshot import RankSnapshot

IN_A_COLLECTIVE = RankSnapshot(call="all_reduce")
FORMING = RankSnapshot(call="new_group")
COMPUTING = RankSnapshot()


@pytest.fixture
def ranks():
    """
    Return four ranks that all sleep.
    """
    return MadeUpRanks()


class Watch:
    """
    A stall detector that polls made-up ranks every 0.2 s.
    """

    def __init__(self, ranks):
        self.ranks = ranks
        self.standstill = StallDetector(
            len(ranks),
            lambda: ranks.supervisor.pids,
            clock=ranks.clock,
            stats=ranks.all_stats.get,
            cpu_seconds=ranks.cpu_s.get,
        )
        self.standstill.look([0, 1, 2, 3])

    def looks(self, count, each=lambda ranks: None):
        """
        Poll `count` times, and return the detector.
        """
        for _ in range(count):
            self.ranks.now += 0.2
            self.ranks.gloo_looks()
            each(self.ranks)
            self.standstill.look([0, 1, 2, 3])
        return self.standstill


def turn(ranks, rank, turns=1, **changes):
    """
    Give a rank's main thread some turns.
    """
    ranks.change(rank, main_turns=ranks.all_stats[100 + rank].main_turns + turns, **changes)


def test_standstill_counts_from_the_last_turn(ranks):
    """
    The stall lasts since the last turn: while all ranks wait for one another, the seconds of their
    sleep count.
    """
    watch = Watch(ranks)
    assert watch.looks(10).seconds == pytest.approx(2.0)
    assert watch.standstill.waits_forever(2, IN_A_COLLECTIVE)


def test_standstill_is_none_while_one_waits_for_a_core(ranks):
    """
    There is no stall while a rank waits for a core: three ranks sleep because the fourth is
    starved, and the cell is only slow.
    """
    ranks.change(1, main_sleeps=False)
    assert Watch(ranks).looks(300).seconds == 0.0


def test_standstill_is_none_while_a_thread_works(ranks):
    """
    There is no stall while a thread works, also in a rank that has finished, because it may be
    about to send.
    """
    ranks.change(3, others_sleep=False)
    assert Watch(ranks).looks(300).seconds == 0.0


def test_standstill_is_none_while_children_compute(ranks):
    """
    There is no stall while child processes compute, such as a DataLoader's workers, for which the
    ranks wait.
    """

    def work(ranks):
        ranks.cpu_s[102] += 0.1

    assert Watch(ranks).looks(50, work).seconds == 0.0


def test_standstill_goes_on_over_the_polls_of_a_loop(ranks):
    """
    The polls of a loop with a sleep do not end a stall, because it wakes up and does nothing.
    """

    def poll(ranks):
        turn(ranks, 2, turns=20)

    assert Watch(ranks).looks(10, poll).seconds == pytest.approx(2.0)


def test_standstill_of_one_that_gets_on_in_its_calls_is_told(ranks):
    """
    A rank that progresses in its calls is recognised by its turns: small messages on a starved
    machine use little CPU time.
    """
    watch = Watch(ranks)
    watch.looks(10, lambda ranks: turn(ranks, 2, turns=20))
    assert watch.standstill.moves_in_a_call(2, IN_A_COLLECTIVE)
    assert not watch.standstill.moves_in_a_call(1, IN_A_COLLECTIVE)
    assert not watch.standstill.moves_in_a_call(2, FORMING)
    assert not watch.standstill.moves_in_a_call(2, COMPUTING)


def test_standstill_is_vain_only_once_gloo_has_looked(ranks):
    """
    A wait counts as for ever only after Gloo's thread had a turn. The message may have arrived
    while that thread is starved.
    """
    watch = Watch(ranks)
    for _ in range(20):
        ranks.now += 0.2
        watch.standstill.look([0, 1, 2, 3])
    assert not watch.standstill.waits_forever(2, IN_A_COLLECTIVE)


def test_standstill_of_a_poll_is_vain_after_many(ranks):
    """
    A wait that polls a store counts as for ever after thirty polls. Seconds are no measure under
    load.
    """
    watch = Watch(ranks)
    watch.looks(20, lambda ranks: turn(ranks, 2))
    assert not watch.standstill.waits_forever(2, FORMING)
    watch.looks(20, lambda ranks: turn(ranks, 2))
    assert watch.standstill.waits_forever(2, FORMING)
    assert not watch.standstill.waits_forever(2, IN_A_COLLECTIVE)


def test_standstill_of_a_wait_for_a_rank_that_there_is_not(ranks):
    """
    A receive from a rank that does not exist counts as a wait for ever: torch polls the store for
    the address of rank -1.
    """
    nobody = RankSnapshot(call="recv", peer=-1)
    watch = Watch(ranks)
    watch.looks(40, lambda ranks: turn(ranks, 2))
    assert not watch.standstill.moves_in_a_call(2, nobody)
    assert watch.standstill.waits_forever(2, nobody)
    assert watch.standstill.moves_in_a_call(2, RankSnapshot(call="recv", peer=1))


def test_chance_after_a_fault(ranks):
    """
    After a fault each other rank gets the chance to reach the same error: enough rest, CPU time or
    turns.
    """
    watch = Watch(ranks)
    at_fault = {rank: watch.standstill.stats(rank) for rank in range(4)}
    fault_at = ranks.now

    def had_a_chance(rank, snapshot):
        return watch.standstill.had_a_chance(rank, snapshot, fault_at, at_fault[rank])

    ranks.change(1, main_sleeps=False)
    watch.looks(1)
    assert had_a_chance(0, IN_A_COLLECTIVE)
    assert not had_a_chance(0, COMPUTING)  # it has slept for only a fifth of a second
    watch.looks(100)
    assert had_a_chance(0, COMPUTING)
    assert not had_a_chance(1, COMPUTING)  # it has had no turn yet
    turn(ranks, 1, turns=3, main_cpu_s=1.31)
    watch.looks(1)
    assert had_a_chance(1, COMPUTING)
    turn(ranks, 2, turns=60)
    watch.looks(1)
    assert had_a_chance(2, COMPUTING)  # a loop with a sleep has run sixty times


def test_standstill_counts_while_one_is_halted(ranks):
    """
    The stall counts while a rank is halted: none of its threads can move, although it does not
    sleep.
    """
    halt = "stopped by a signal"
    ranks.change(1, main_sleeps=False, main_halt=halt, others_sleep=False)
    watch = Watch(ranks)
    assert watch.looks(20).seconds > 3.0
    assert watch.standstill.halts == {1: halt}
    assert not watch.standstill.moves_in_a_call(1, IN_A_COLLECTIVE)
    ranks.change(1, main_sleeps=True, main_halt="", others_sleep=True)
    turn(ranks, 1)
    assert watch.looks(1).halts == {}


def test_a_halted_rank_had_its_chance_to_raise(ranks):
    """
    After another rank's error, a halted rank counts as having had its chance, because it cannot
    report an error.
    """
    ranks.change(1, main_sleeps=False, main_halt="stopped by a signal")
    watch = Watch(ranks)
    fault_at, at_fault = ranks.now, ranks.all_stats[101]
    assert not watch.looks(2).had_a_chance(1, None, fault_at, at_fault)
    assert watch.looks(2).had_a_chance(1, None, fault_at, at_fault)
