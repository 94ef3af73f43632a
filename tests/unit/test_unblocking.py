"""
Which ranks cannot be released, and which are only slow, on made-up ranks.
"""

from concurrent.futures import Future

import pytest
from fake_ranks import MadeUpRanks

from ddp_lessons.ranks.kernel import unblocking
from ddp_lessons.ranks.kernel.unblocking import Unblocker
from ddp_lessons.ranks.system.clocks import FREE_EVERY_S


@pytest.fixture
def ranks(monkeypatch):
    """
    Return four ranks that all wait in a call, and whose agents release them on request.
    """
    monkeypatch.setattr(unblocking, "children_of", lambda pid: [])
    monkeypatch.setattr(unblocking, "asks_name_server", lambda pid: False)
    made_up = MadeUpRanks()
    made_up.states = {rank: {} for rank in range(4)}
    return made_up


def lost_after(ranks, seconds, running=(0, 1, 2, 3), each=lambda ranks: None):
    """
    Release ranks for some seconds. Return those that are given up, and after how many seconds.
    """
    freed = Unblocker(ranks, clock=ranks.clock, stats=ranks.all_stats.get)
    for step in range(round(seconds / FREE_EVERY_S)):
        ranks.now += FREE_EVERY_S
        ranks.gloo_looks()
        each(ranks)
        lost = freed.step(list(running))
        if lost:
            return lost, (step + 1) * FREE_EVERY_S
    return [], seconds


def test_freeing_gives_up_who_let_go_and_sleeps_on(ranks):
    """
    A rank that was released and still sleeps is given up: it receives from a rank that does not
    exist, so nothing can wake it.
    """
    lost, seconds = lost_after(ranks, 10.0, running=[2])
    assert lost == [2]
    assert seconds < 1.0


def test_freeing_wakes_a_sleeper_before_it_gives_it_up(ranks):
    """
    A sleeping rank is woken before it is given up, because Gloo may forget a waiter whose message
    was under way when the connection was cut.
    """
    ranks.sleepers[2] = [2, 1]

    def comes_back(ranks):
        if not ranks.sleepers[2]:
            ranks.states[2] = {"idle": True}

    assert lost_after(ranks, 60.0, running=[2], each=comes_back)[0] == []
    assert ranks.told.count(("wake", [2])) == 2


def test_freeing_gives_up_who_is_woken_again_and_again(ranks):
    """
    A rank that is woken again and again is given up at last, because an endless wait must not block
    the prompt for ever.
    """
    ranks.sleepers[2] = [1] * 1000
    lost, seconds = lost_after(ranks, 60.0, running=[2])
    assert lost == [2]
    assert seconds < 15.0


def test_freeing_never_gives_up_who_has_not_said_whom_it_woke(ranks):
    """
    A rank is not given up before its agent has answered the wake-up, because the agent may be
    starved.
    """
    ranks.control.wake = lambda some: {rank: Future() for rank in some}
    assert lost_after(ranks, 60.0, running=[2])[0] == []


@pytest.mark.parametrize("is_deaf", [False, True])
def test_freeing_waits_for_a_name_server_for_a_while(ranks, monkeypatch, is_deaf):
    """
    A rank that waits for a name server is given up only after the time that a few lookups take: the
    system asks again after 5 s if one packet is lost. The rank may hold its interpreter meanwhile.
    """
    monkeypatch.setattr(unblocking, "asks_name_server", lambda pid: True)
    if is_deaf:
        del ranks.states[1]

    def has_turns(ranks):
        ranks.change(1, agent_turns=ranks.all_stats[101].agent_turns + 40)

    lost, seconds = lost_after(ranks, 60.0, running=[1], each=has_turns)
    assert lost == [1]
    assert 20.0 <= seconds < 22.0


def test_freeing_never_gives_up_who_waits_for_a_core(ranks):
    """
    A rank that waits for a core is never given up: on a crowded machine its main thread may have no
    turn for a minute.
    """
    ranks.change(2, main_sleeps=False)
    assert lost_after(ranks, 60.0, running=[2])[0] == []


def test_freeing_never_gives_up_whose_guard_had_no_turn(ranks):
    """
    A sleeping rank is never given up while its agent has had no turn, because nothing has cut its
    connections yet.
    """
    del ranks.states[2]
    assert lost_after(ranks, 60.0, running=[2])[0] == []


def test_freeing_never_gives_up_whose_gloo_had_no_turn(ranks):
    """
    A rank is never given up while its Gloo thread has had no turn, because that thread must notice
    that the sockets are cut.
    """
    ranks.change(2, gloo_turns=100)
    freed = Unblocker(ranks, clock=ranks.clock, stats=ranks.all_stats.get)
    for _ in range(300):
        ranks.now += FREE_EVERY_S
        assert freed.step([2]) == []


def test_freeing_waits_for_the_peers_to_let_go(ranks):
    """
    A rank is not given up before its peers' agents have released them, because its wait may end
    only at the other end.
    """
    del ranks.states[3]
    assert lost_after(ranks, 60.0, running=[2, 3])[0] == []


def test_freeing_waits_for_children_that_move(ranks, monkeypatch):
    """
    A rank is not given up while its child processes use CPU time: an interrupted cell waits for its
    DataLoader's workers to end.
    """
    used = iter(range(10_000))
    monkeypatch.setattr(unblocking, "children_of", lambda pid: [7])
    monkeypatch.setattr(unblocking, "descendants_of", lambda pid: [7])
    monkeypatch.setattr(unblocking, "tree_cpu_seconds", lambda pid: next(used))
    assert lost_after(ranks, 60.0, running=[2])[0] == []


def test_freeing_never_gives_up_who_is_idle(ranks):
    """
    A rank that is idle is never given up: it has returned, and its answer is on its way through a
    starved controller.
    """
    ranks.states[2] = {"idle": True}
    assert lost_after(ranks, 60.0, running=[2])[0] == []


def test_freeing_gives_up_the_deaf(ranks):
    """
    A rank whose agent had many turns and does not answer is given up: C code holds the interpreter
    and sleeps.
    """
    del ranks.states[1]

    def turns(ranks):
        ranks.change(1, agent_turns=ranks.all_stats[101].agent_turns + 40)

    lost, seconds = lost_after(ranks, 10.0, running=[1], each=turns)
    assert lost == [1]
    assert seconds < 1.0
    assert ("cut", [1]) in ranks.told


def test_freeing_never_gives_up_whose_interpreter_is_held_by_a_starved_thread(ranks):
    """
    A rank is never given up while its interpreter is held by an engine's thread that waits for a
    core.
    """
    del ranks.states[1]

    def turns(ranks):
        ranks.change(1, agent_turns=ranks.all_stats[101].agent_turns + 40, engine_sleeps=False)

    assert lost_after(ranks, 60.0, running=[1], each=turns)[0] == []


def test_freeing_gives_up_the_stubborn(ranks):
    """
    A rank that catches every interrupt in a loop is given up, because it had its chances and is not
    slow.
    """
    caught = iter(range(1, 1000))

    def catch(ranks):
        ranks.change(2, main_turns=ranks.all_stats[102].main_turns + 9)
        ranks.states[2] = {"num_interrupts": next(caught)}

    lost, seconds = lost_after(ranks, 60.0, running=[2], each=catch)
    assert lost == [2]
    assert seconds > 5.0


def test_freeing_counts_cpu_time_of_who_computes(ranks):
    """
    For a rank that computes, CPU time counts and not seconds: a long call into C is given up after
    ten seconds of CPU time.
    """

    def starved(ranks):
        stats = ranks.all_stats[102]
        ranks.change(
            2,
            main_sleeps=False,
            main_turns=stats.main_turns + 9,
            main_cpu_s=stats.main_cpu_s + 0.01,
        )

    assert lost_after(ranks, 60.0, running=[2], each=starved)[0] == []

    def computing(ranks):
        ranks.change(2, main_sleeps=False, main_cpu_s=ranks.all_stats[102].main_cpu_s + 0.2)

    lost, seconds = lost_after(ranks, 60.0, running=[2], each=computing)
    assert lost == [2]
    assert seconds == pytest.approx(10.0, abs=0.5)


def test_freeing_tells_a_sleeper_once_more_that_has_had_its_interrupt(ranks):
    """
    A sleeping rank that has had its interrupt is released once more, because it may wait in a
    `finally`. If it still sleeps, it is given up.
    """
    assert lost_after(ranks, 60.0, running=[2])[0] == [2]
    assert ranks.told.count(("release", [2])) == 1


def test_freeing_tells_those_again_that_moved_and_wakes_no_sleeper(ranks):
    """
    Ranks that ran are released again, because they may have blocked again. Sleeping ranks are only
    asked for their state, because a release would wake them.
    """

    def move(ranks):
        ranks.change(3, main_turns=ranks.all_stats[103].main_turns + 9)

    ranks.states[2] = {"num_interrupts": 0}
    lost_after(ranks, 0.4, running=[2, 3], each=move)
    assert ranks.told.count(("release", [3])) == 2
    assert ("release", [2, 3]) not in ranks.told[1:]
    assert ("state", [2]) in ranks.told


def test_freeing_where_the_system_does_not_tell(ranks):
    """
    Without /proc only seconds count, and the limit is long.
    """
    ranks.all_stats.clear()
    lost, seconds = lost_after(ranks, 60.0, running=[2])
    assert lost == [2]
    assert seconds > 5.0


HALTED = {"main_sleeps": False, "main_halt": "stopped by a signal"}


def test_freeing_resumes_a_stopped_rank_once(ranks):
    """
    A stopped rank is resumed once. It is then released and keeps its variables. Idle ranks are
    resumed too, because the next group needs them.
    """
    ranks.change(1, **HALTED)
    ranks.change(2, **HALTED)
    del ranks.states[2]

    def goes_on(ranks):
        ranks.change(2, main_sleeps=True, main_halt="")
        ranks.states[2] = {"idle": True}

    assert lost_after(ranks, 10.0, running=[2], each=goes_on)[0] == []
    assert ranks.told[0] == ("release", [0, 1, 2, 3])
    assert [told for told in ranks.told if told[0] == "resume"] == [("resume", [1, 2])]


@pytest.mark.parametrize("halt", ["stopped by a signal", "waiting for a disk"])
@pytest.mark.parametrize("idle", [False, True])
def test_freeing_gives_up_who_stays_halted(ranks, halt, idle):
    """
    A rank that stays halted is given up five seconds after Stop, also if it had returned before.
    """
    ranks.change(2, main_sleeps=False, main_halt=halt)
    ranks.states[2] = {"idle": idle}
    lost, seconds = lost_after(ranks, 60.0, running=[2])
    assert lost == [2]
    assert 5.0 <= seconds < 6.0


def test_freeing_waits_for_a_disk_that_answers(ranks):
    """
    A rank with turns between two waits for a disk is not given up, because the disk is only slow.
    """
    ranks.change(2, main_sleeps=False, main_halt="waiting for a disk")

    def reads(ranks):
        ranks.change(2, main_turns=ranks.all_stats[102].main_turns + 1)

    assert lost_after(ranks, 60.0, running=[2], each=reads)[0] == []


def test_freeing_waits_for_the_limit_of_a_join(ranks):
    """
    A rank in a join is given up only after the join's own limit: torch tries to connect until then,
    and then returns by itself.
    """
    freed = Unblocker(ranks, ranks.clock, ranks.all_stats.get, limits={2: 4.0})
    lost = []
    while not lost and ranks.now < 120.0:
        ranks.now += FREE_EVERY_S
        ranks.gloo_looks()
        lost = freed.step([2])
    assert lost == [2]
    assert 4.0 < ranks.now - 100.0 < 5.0
