"""
The registry of launchers: one entry for each, which is all that the rest of the code needs.
"""

import sys

import pytest

from ddp_lessons.errors import BadInput
from ddp_lessons.ranks.kernel import session
from ddp_lessons.ranks.kernel.bootstrap import listen_address
from ddp_lessons.ranks.kernel.launchers import registry
from ddp_lessons.ranks.kernel.launchers.registry import (
    RANK_LAUNCHERS,
    LauncherEntry,
    load,
    rank_processes_of,
)
from ddp_lessons.ranks.kernel.rank_processes import RankProcesses, StartedCluster
from ddp_lessons.ranks.supervisor.controller_options import LOOPBACK


@pytest.mark.parametrize("launcher", RANK_LAUNCHERS.values(), ids=lambda launcher: launcher.name)
def test_each_entry_names_what_is_there(launcher):
    """
    Each entry's paths can be imported. Otherwise the first learner who uses that launcher would
    find the typing error.
    """
    assert issubclass(load(launcher.rank_processes), RankProcesses)
    engines = load(launcher.engine_launcher)
    assert engines in ("ddp-lessons", "local") or hasattr(engines, "start")
    assert not launcher.listen_address or callable(load(launcher.listen_address))
    assert launcher.is_elsewhere == bool(launcher.listen_address)


def test_the_docstring_of_start_ranks_names_each_launcher():
    """
    The docstring of start_ranks names each launcher, because learners read it with `start_ranks?`.
    """
    for name in RANK_LAUNCHERS:
        assert f'"{name}"' in session.start_ranks.__doc__


def test_only_an_entry_that_must_fork_is_refused_where_forking_is_not_safe(monkeypatch):
    """
    Where forking is not safe, "fork" is refused with what to do, and "auto" spawns its ranks.
    """
    monkeypatch.setattr(session, "can_fork", lambda: (False, "there are threads"))
    for name, entry in RANK_LAUNCHERS.items():
        assert entry.may_fork or not entry.must_fork
        if not entry.must_fork:
            session._check_launcher(name)
    fault = '^launcher="fork" cannot be used: there are threads. Use launcher="spawn".$'
    with pytest.raises(BadInput, match=fault):
        session._check_launcher("fork")


class MadeUpRankProcesses(RankProcesses):
    """
    The ranks of a launcher that starts nothing.
    """

    def __init__(self, started):
        self.launcher = started.launcher

    def _options(self):
        return {}

    def _log_tail(self, ranks):
        return ""


@pytest.fixture
def made_up(monkeypatch):
    """
    Add a launcher by one entry, and return the entry.
    """
    monkeypatch.setitem(sys.modules, "made_up_launcher", sys.modules[__name__])
    entry = LauncherEntry(
        "made-up", engine_launcher="local", rank_processes="made_up_launcher:MadeUpRankProcesses"
    )
    monkeypatch.setitem(registry.RANK_LAUNCHERS, "made-up", entry)
    return entry


def test_one_entry_is_all_that_a_new_launcher_needs(made_up, monkeypatch):
    """
    One entry is all that a new launcher needs: its name is accepted and listed, its class is used,
    and its controller listens on loopback.
    """
    monkeypatch.setattr(MadeUpRankProcesses, "__abstractmethods__", frozenset())
    session._check_launcher("made-up")
    started = StartedCluster(None, None, None, None, launcher="made-up")
    assert rank_processes_of(started).launcher == "made-up"
    assert listen_address("made-up", None) == LOOPBACK
    with pytest.raises(BadInput, match=r', "made-up" \(got \'made-down\'\)'):
        session._check_launcher("made-down")
