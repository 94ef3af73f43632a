"""
The registry of launchers: one entry for each, which is all that the rest of the code needs.
"""

import sys

import pytest

from ddp_lessons.errors import BadInput
from ddp_lessons.ranks.kernel import session
from ddp_lessons.ranks.kernel.bootstrap import listen_address
from ddp_lessons.ranks.kernel.launchers import registry
from ddp_lessons.ranks.kernel.launchers.registry import LAUNCHERS, Launcher, load, rank_processes_of
from ddp_lessons.ranks.kernel.rank_processes import RankProcesses
from ddp_lessons.ranks.supervisor.controller_options import LOOPBACK


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=lambda launcher: launcher.name)
def test_each_entry_names_what_is_there(launcher):
    """
    Each entry's paths can be imported. Otherwise the first learner who uses that launcher would
    find the typing error.
    """
    assert issubclass(load(launcher.rank_processes), RankProcesses)
    engines = load(launcher.engines)
    assert engines in ("ddp-lessons", "local") or hasattr(engines, "start")
    assert not launcher.listen_address or callable(load(launcher.listen_address))
    assert launcher.is_elsewhere == bool(launcher.listen_address)


def test_the_docstring_of_start_ranks_names_each_launcher():
    """
    The docstring of start_ranks names each launcher, because learners read it with `start_ranks?`.
    """
    for name in LAUNCHERS:
        assert f'"{name}"' in session.start_ranks.__doc__


class DryRankProcesses(RankProcesses):
    """
    The ranks of a launcher that starts nothing.
    """

    def __init__(self, supervisor, cluster, client, placement, launcher):
        self.launcher = launcher

    def _options(self):
        return {}

    def _log_tail(self, ranks):
        return ""


@pytest.fixture
def dry(monkeypatch):
    """
    Add a launcher by one entry, and return the entry.
    """
    monkeypatch.setitem(sys.modules, "dry_launcher", sys.modules[__name__])
    entry = Launcher(
        "dry", "print", engines="local", rank_processes="dry_launcher:DryRankProcesses"
    )
    monkeypatch.setitem(registry.LAUNCHERS, "dry", entry)
    return entry


def test_one_entry_is_all_that_a_new_launcher_needs(dry, monkeypatch):
    """
    One entry is all that a new launcher needs: its name is accepted and listed, its class is used,
    and its controller listens on loopback.
    """
    monkeypatch.setattr(DryRankProcesses, "__abstractmethods__", frozenset())
    session._check_launcher("dry")
    assert rank_processes_of("dry", None, None, None, None).launcher == "dry"
    assert listen_address("dry", None) == LOOPBACK
    with pytest.raises(BadInput, match=r'"mpi", "dry" \(got \'dri\'\)'):
        session._check_launcher("dri")
