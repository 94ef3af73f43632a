"""
Ranks that join or leave a group, on made-up ranks: which of them will never finish, and which are
only slow.
"""

import pytest
from fake_ranks import MadeUpRanks

from ddp_lessons.errors import StartFailed
from ddp_lessons.ranks.kernel import regrouping
from ddp_lessons.ranks.kernel.regrouping import _Watch
from ddp_lessons.ranks.system import clocks


class Scene:
    """
    Four ranks, of which 1 and 2 run a function of `group_membership` and the others have finished
    it.
    """

    def __init__(self, name):
        self.ranks = MadeUpRanks()
        self.watch = _Watch(self.ranks, name, self.ranks.clock, self.ranks.all_stats.get)

    def ends_after(self, seconds, each=lambda ranks: None):
        """
        Poll every 0.1 s. Return the seconds until waiting became useless, or None.
        """
        for look in range(1, round(seconds * 10) + 1):
            self.ranks.now += 0.1
            self.ranks.gloo_looks()
            each(self.ranks)
            if self.watch.stands_still([1, 2]):
                return look / 10
        return None


def poll(ranks):
    """
    Count the turns of ranks that look for a store's key ten times in a tenth of a second.
    """
    for rank in (1, 2):
        ranks.change(rank, main_turns=ranks.all_stats[100 + rank].main_turns + 10)


@pytest.mark.parametrize(
    ("name", "limit_s"),
    [
        ("leave", clocks.ALONE_ASLEEP_S),
        ("open_store", clocks.ALONE_ASLEEP_S),
        ("join", clocks.JOIN_ASLEEP_S),
    ],
)
def test_ranks_that_sleep_too_long_will_never_come(name, limit_s):
    """
    Ranks that sleep too long will never finish. A rank that joins gets longer, because it may wait
    for others, and time under load does not count.
    """
    scene = Scene(name)
    for rank in (1, 2):
        scene.ranks.change(rank, main_sleeps=False)  # they wait for a core
    assert scene.ends_after(600) is None
    for rank in (1, 2):
        scene.ranks.change(rank, main_sleeps=True)
    assert scene.ends_after(60) == pytest.approx(limit_s, abs=0.25)


@pytest.mark.parametrize(("name", "is_over"), [("leave", True), ("join", False)])
def test_one_rank_that_sleeps_holds_up_a_join_only_while_all_do(name, is_over):
    """
    One rank that sleeps counts as stuck if it leaves a group, because it waits for no other. In a
    join all must sleep, because a rank that joins waits for the slowest.
    """
    scene = Scene(name)
    scene.ranks.change(2, main_sleeps=False)
    assert (scene.ends_after(600) is not None) == is_over


def test_ranks_that_poll_a_store_are_given_turns_and_no_seconds():
    """
    Ranks that poll a store are judged by turns, not by seconds: a waiting rank polls every 10 ms,
    and a starved one uses up no turns.
    """
    scene = Scene("join")
    assert scene.ends_after(600, poll) == pytest.approx(clocks.JOIN_POLLS / 100, abs=0.2)


def test_ranks_of_which_the_system_tells_nothing_are_given_seconds():
    """
    Without /proc there are no thread stats, so ranks are judged by seconds.
    """
    scene = Scene("leave")
    scene.ranks.all_stats.clear()
    assert scene.ends_after(600) == pytest.approx(clocks.GROUP_UNKNOWN_S, abs=0.2)


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        ("rank 0 could not leave one (PrivateNameGone: `x` is gone)", "Install the versions of"),
        (
            "rank 2 did not join one",
            r"Call start_ranks\(\) for new ranks\. If these still run, the",
        ),
    ],
)
def test_the_advice_fits_what_kept_ranks_from_joining(fault, advice, monkeypatch):
    """
    The next cell may join ranks that were too slow. It cannot join any under a torch that lacks a
    private name, so the advice is another version.
    """

    def fail(ranks):
        raise regrouping.GroupBroken(fault)

    monkeypatch.setattr(regrouping, "_free_all", lambda ranks: set())
    monkeypatch.setattr(regrouping, "leave_all", fail)
    with pytest.raises(StartFailed, match=f"in no group: .*{advice}"):
        regrouping.rejoin_group(MadeUpRanks())
