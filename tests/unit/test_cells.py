"""
The end of a cell on made-up ranks: how long it waits for output and for news of deaths.
"""

from functools import partial
from types import SimpleNamespace

import pytest
from fake_ranks import MadeUpRanks

from ddp_lessons.ranks.kernel import cells
from ddp_lessons.ranks.kernel.cells import CellRun
from ddp_lessons.ranks.messages.outcome import OK, RAISED, RELEASED, Outcome
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout

LOST_PEER = "Connection closed by peer [127.0.0.1]:4711"
BUSY_S = 60.0


class End:
    """
    A cell whose two ranks have replied, on a machine that is busy for a minute and then quiet.

    Attributes:
        seconds: Seconds since the replies.
        comes: {seconds: function without arguments}: the news that arrives while the cell waits.
    """

    def __init__(self, monkeypatch, *outcomes):
        self.ranks = MadeUpRanks(2)
        self.ranks.dead = []
        self.ranks.supervisor.supervisor_pid = 99
        self.ranks.control.pids = lambda ranks: [100, 101]
        self.seconds, self.comes = 0.0, {}
        made_up = partial(LoadAwareTimeout, clock=lambda: self.seconds, wants=self._wants_a_core)
        monkeypatch.setattr(cells, "LoadAwareTimeout", made_up)
        self.run = CellRun(self.ranks, "", [0, 1])
        self.run.outcomes = dict(enumerate(outcomes))
        self.run._requests = SimpleNamespace(news=self._news)

    def _wants_a_core(self, pid):
        return self.seconds < BUSY_S

    def _news(self, within_s):
        self.seconds += within_s
        for seconds in [seconds for seconds in self.comes if seconds <= self.seconds]:
            self.comes.pop(seconds)()
        return []


@pytest.fixture
def end(monkeypatch):
    """
    Return a function from outcomes to an End.
    """
    return partial(End, monkeypatch)


def test_output_is_waited_for_while_a_rank_wants_a_core(end, capsys):
    """
    A cell waits for output while a rank wants a core, because a starved rank prints late. It stops
    one second after all ranks sleep, because no more output can come.
    """
    late = end(Outcome(OK), Outcome(OK))
    for rank, output in late.run._outputs.items():
        late.comes[BUSY_S * rank] = partial(setattr, output, "done", True)
    late.run._wait_for_output()
    assert late.seconds == pytest.approx(BUSY_S, abs=0.1)
    assert capsys.readouterr().err == ""
    lost = end(Outcome(OK), Outcome(OK))
    lost.run._outputs[0].done = True
    lost.run._wait_for_output()
    assert lost.seconds == pytest.approx(BUSY_S + clocks.OUTPUT_S, abs=0.3)
    assert capsys.readouterr().err.startswith("The output of rank 1 did not arrive: ")


def test_news_of_a_death_turn_an_error_into_a_victims(end):
    """
    An error by a lost connection counts as collateral if news of a death arrives later. Without a
    death that error is the culprit's.
    """
    victim = end(Outcome(OK), Outcome(RAISED, evalue=LOST_PEER))
    victim.comes[BUSY_S] = lambda: victim.ranks.dead.append(0)
    victim.run._mark_collateral()
    assert victim.run.outcomes[1].kind == RELEASED
    culprit = end(Outcome(OK), Outcome(RAISED, evalue=LOST_PEER))
    culprit.run._mark_collateral()
    assert culprit.run.outcomes[1].kind == RAISED
    assert culprit.seconds == pytest.approx(BUSY_S + clocks.NEWS_S, abs=0.3)
