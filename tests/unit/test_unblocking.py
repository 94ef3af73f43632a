"""
Who is beyond help, and who is only slow: on ranks that are made up.
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
    Four ranks that all wait in a call, whose agents let go when they are told to.
    """
    monkeypatch.setattr(unblocking, "children_of", lambda pid: [])
    made_up = MadeUpRanks()
    made_up.states = {rank: {} for rank in range(4)}
    return made_up


def lost_after(ranks, seconds, running=(0, 1, 2, 3), each=lambda ranks: None):
    """
    Free ranks for some seconds; return who was lost, and after how many.
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
    A receive from a rank that there is not: nothing can wake it any more.
    """
    lost, seconds = lost_after(ranks, 10.0, running=[2])
    assert lost == [2]
    assert seconds < 1.0


def test_freeing_wakes_a_sleeper_before_it_gives_it_up(ranks):
    """
    Gloo forgets who waits for a message that was under way when the connection was cut.
    """
    ranks.sleepers[2] = [2, 1]

    def comes_back(ranks):
        if not ranks.sleepers[2]:
            ranks.states[2] = {"idle": True}

    assert lost_after(ranks, 60.0, running=[2], each=comes_back)[0] == []
    assert ranks.told.count(("wake", [2])) == 2


def test_freeing_gives_up_who_is_woken_again_and_again(ranks):
    """
    A wait that is never over must not keep the prompt for ever.
    """
    ranks.sleepers[2] = [1] * 1000
    lost, seconds = lost_after(ranks, 60.0, running=[2])
    assert lost == [2]
    assert seconds < 15.0


def test_freeing_never_gives_up_who_has_not_said_whom_it_woke(ranks):
    """
    The agent that is to wake others is starved.
    """
    ranks.control.wake = lambda some: {rank: Future() for rank in some}
    assert lost_after(ranks, 60.0, running=[2])[0] == []


def test_freeing_never_gives_up_who_waits_for_a_core(ranks):
    """
    The crowd: its agent has let go, its main thread is runnable, and has no turn for a minute.
    """
    ranks.change(2, main_sleeps=False)
    assert lost_after(ranks, 60.0, running=[2])[0] == []


def test_freeing_never_gives_up_whose_guard_had_no_turn(ranks):
    """
    It sleeps, but nobody in it has had the processor to cut what it waits for.
    """
    del ranks.states[2]
    assert lost_after(ranks, 60.0, running=[2])[0] == []


def test_freeing_never_gives_up_whose_gloo_had_no_turn(ranks):
    """
    The sockets are cut; who must notice is starved.
    """
    ranks.change(2, gloo_turns=100)
    freed = Unblocker(ranks, clock=ranks.clock, stats=ranks.all_stats.get)
    for _ in range(300):
        ranks.now += FREE_EVERY_S
        assert freed.step([2]) == []


def test_freeing_waits_for_the_peers_to_let_go(ranks):
    """
    What a rank waits for may be cut at the other end only, by a agent that is starved.
    """
    del ranks.states[3]
    assert lost_after(ranks, 60.0, running=[2, 3])[0] == []


def test_freeing_waits_for_children_that_move(ranks, monkeypatch):
    """
    A cell that is interrupted waits for the workers of its DataLoader to end.
    """
    used = iter(range(10_000))
    monkeypatch.setattr(unblocking, "children_of", lambda pid: [7])
    monkeypatch.setattr(unblocking, "descendants_of", lambda pid: [7])
    monkeypatch.setattr(unblocking, "tree_cpu_seconds", lambda pid: next(used))
    assert lost_after(ranks, 60.0, running=[2])[0] == []


def test_freeing_never_gives_up_who_is_idle(ranks):
    """
    It came back, and its answer is under way through a starved controller.
    """
    ranks.states[2] = {"idle": True}
    assert lost_after(ranks, 60.0, running=[2])[0] == []


def test_freeing_gives_up_the_deaf(ranks):
    """
    C code holds the interpreter and sleeps: the agent had many turns, and said no word.
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
    The agent had many turns and said no word: the engine's thread that holds the interpreter waits
    for a core.
    """
    del ranks.states[1]

    def turns(ranks):
        ranks.change(1, agent_turns=ranks.all_stats[101].agent_turns + 40, engine_sleeps=False)

    assert lost_after(ranks, 60.0, running=[1], each=turns)[0] == []


def test_freeing_gives_up_the_stubborn(ranks):
    """
    A loop that catches every interrupt: it is not slow, it had its chances.
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
    A long call into C: ten seconds of the processor are enough, ten on the wall are nothing.
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
    It may wait in a `finally`. Some catch every interrupt and sleep on: those are given up.
    """
    assert lost_after(ranks, 60.0, running=[2])[0] == [2]
    assert ranks.told.count(("release", [2])) == 1


def test_freeing_tells_those_again_that_moved_and_wakes_no_sleeper(ranks):
    """
    Who was freed may wait anew; who sleeps would be woken by being told, and never seem asleep.
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
    Without /proc only seconds are left, and there are enough of them.
    """
    ranks.all_stats.clear()
    lost, seconds = lost_after(ranks, 60.0, running=[2])
    assert lost == [2]
    assert seconds > 5.0


HALTED = {"main_sleeps": False, "main_halt": "stopped by a signal"}


def test_freeing_resumes_a_stopped_rank_once(ranks):
    """
    It goes on, lets go, and keeps its variables: idle ranks too, which the next group needs.
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
    Five seconds without a turn, after Stop: also of one whose answer would be under way.
    """
    ranks.change(2, main_sleeps=False, main_halt=halt)
    ranks.states[2] = {"idle": idle}
    lost, seconds = lost_after(ranks, 60.0, running=[2])
    assert lost == [2]
    assert 5.0 <= seconds < 6.0


def test_freeing_waits_for_a_disk_that_answers(ranks):
    """
    A turn between two waits: a slow disk is no dead one.
    """
    ranks.change(2, main_sleeps=False, main_halt="waiting for a disk")

    def reads(ranks):
        ranks.change(2, main_turns=ranks.all_stats[102].main_turns + 1)

    assert lost_after(ranks, 60.0, running=[2], each=reads)[0] == []


def test_freeing_waits_for_the_limit_of_a_join(ranks):
    """
    torch tries to connect until then, whatever is cut; then the rank lets go by itself.
    """
    freed = Unblocker(ranks, ranks.clock, ranks.all_stats.get, limits={2: 4.0})
    lost = []
    while not lost and ranks.now < 120.0:
        ranks.now += FREE_EVERY_S
        ranks.gloo_looks()
        lost = freed.step([2])
    assert lost == [2]
    assert 4.0 < ranks.now - 100.0 < 5.0
