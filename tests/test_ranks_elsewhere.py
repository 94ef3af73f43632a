"""
Ranks on two hosts, started by SSH: what is promised of a rank at home holds of one far away.

It takes minutes, so it is run by `make soak` and in CI, and not by `make test`.
"""

import functools
import os
import re
import signal
import sys
import threading
import time

import pytest
from launched import blocks
from throw_away_hosts import hosts, needs_hosts, net_of, traces

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.errors import CellStopped, RankDied, RankRaised, StartFailed
from ddp_lessons.ranks.kernel.cells import run_cell

CONFIGURATION = """
c = get_config()
c.SSHLauncher.ssh_cmd = ["ssh", "-F", "{folder}/ssh_config"]
c.SSHLauncher.scp_cmd = ["scp", "-F", "{folder}/ssh_config"]
"""
START, SETTINGS = blocks("ssh.md", "python")
PAGES_PYTHON = "/home/ada/course/.venv/bin/python"
START_S = 120.0

pytestmark = [pytest.mark.soak, pytest.mark.ranks, pytest.mark.timeout(400), needs_hosts]


def configure(patch, home, folder, settings=SETTINGS):
    """
    Write ipyparallel's configuration, as the page shows it, into an IPython folder.
    """
    profile = home / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipcluster_config.py").write_text(
        CONFIGURATION.format(folder=folder) + settings.replace(PAGES_PYTHON, sys.executable)
    )
    patch.setenv("IPYTHONDIR", str(home))


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    """
    Give the folder of two hosts.
    """
    folder = tmp_path_factory.mktemp("bed") / "hosts"
    done = hosts("up", 2, folder=folder)
    assert done.returncode == 0, done.stderr
    net = net_of(folder)
    yield folder
    hosts("down", folder=folder)
    assert traces(folder, net) == []


@pytest.fixture(scope="module")
def ranks(bed, tmp_path_factory):
    """
    Two ranks on each host. Each test leaves them in order, the last one without a host.
    """
    with pytest.MonkeyPatch.context() as patch:
        configure(patch, tmp_path_factory.mktemp("home"), bed)
        names = {"start_ranks": functools.partial(start_ranks, timeout_s=START_S)}
        exec(START, names)
        started = names["ranks"]
        started.view.execute("import os, signal, socket, time, torch, torch.distributed as dist")
        started.view.execute("mine, one = dist.get_rank(), torch.ones(1)")
        yield started
        stop_ranks()
    assert engines_on(bed, 1) == 0


def engines_on(folder, number):
    """
    Return how many engines a host has.
    """
    return hosts("run", number, "ps", "ax", folder=folder).stdout.count("rank.engine")


def assert_in_order(ranks, kept):
    """
    The next collective works, and ranks still have what they had.
    """
    run_cell(ranks, "import torch, torch.distributed as dist\nthere = torch.ones(1)")
    run_cell(ranks, "dist.all_reduce(there)\nnum_there = int(there.item())")
    assert ranks.view["num_there"] == [len(ranks)] * len(ranks)
    assert [ranks[rank]["mine"] for rank in kept] == list(kept)


def test_ranks_are_where_they_were_asked_for(ranks, bed):
    """
    Two on each host, one group, and the table says where.
    """
    run_cell(ranks, "host = socket.gethostname()")
    assert ranks.view["host"] == ["node1", "node1", "node2", "node2"]
    assert re.search(r"^3 +idle +cpu +\d+ +node2$", repr(ranks.status()), re.MULTILINE)
    assert (engines_on(bed, 1), engines_on(bed, 2)) == (2, 2)
    assert_in_order(ranks, range(4))


def test_a_rank_that_raises_is_named_and_the_others_are_freed(ranks):
    """
    They wait in an all-reduce for one that will never come.
    """
    with pytest.raises(RankRaised, match="rank 2 raised ValueError: two") as caught:
        run_cell(ranks, "if dist.get_rank() == 2: raise ValueError('two')\ndist.all_reduce(one)")
    assert "ranks 0, 1 and 3 were released" in str(caught.value)
    assert_in_order(ranks, range(4))


def test_a_deadlock_is_ended_and_told_with_its_hosts(ranks):
    """
    The nanny beside each engine is nobody who may still act.
    """
    with pytest.raises(RankRaised, match="Deadlock: rank 1 finished") as caught:
        run_cell(ranks, "if dist.get_rank() != 1: dist.all_reduce(one)")
    assert re.search("^3 on node2 .*all_reduce", str(caught.value), re.MULTILINE)
    assert_in_order(ranks, range(4))


def test_stop_frees_ranks_on_every_host(ranks):
    """
    Stop reaches those that no signal of ours reaches.
    """
    stop = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
    stop.start()
    with pytest.raises(CellStopped, match="rank 0 waits for them in all_reduce"):
        run_cell(ranks, "time.sleep(60 if mine else 0)\ndist.all_reduce(one)")
    stop.join()
    assert_in_order(ranks, range(4))


def test_a_cable_that_is_out_for_seconds_ends_no_cell(ranks, bed):
    """
    Nobody can tell a link that comes back from one that is slow.
    """
    hosts("cut", 2, folder=bed)
    mend = threading.Timer(3.0, hosts, ("mend", 2), {"folder": bed})
    mend.start()
    run_cell(ranks, "dist.all_reduce(one)")
    mend.join()
    assert_in_order(ranks, range(4))


def test_a_rank_that_is_killed_gets_a_new_process_where_it_was(ranks):
    """
    It costs a login and an import, and nobody else's variables.
    """
    with pytest.raises(RankDied, match="rank 3 died") as caught:
        run_cell(ranks, "if mine == 3: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(one)")
    assert "A new rank 3 is in place" in str(caught.value)
    assert ranks.engines.hosts[3] == "node2"
    assert_in_order(ranks, range(3))


def test_what_was_on_a_host_that_vanishes_comes_up_on_another(ranks, bed):
    """
    Nobody says goodbye: only its silence tells.
    """
    switch_off = threading.Timer(1.0, hosts, ("off", 2), {"folder": bed})
    switch_off.start()
    with pytest.raises(RankDied, match=r"rank 2 died.*\nrank 3 died") as caught:
        run_cell(ranks, "import time\ntime.sleep(3)\ndist.all_reduce(one)")
    switch_off.join()
    assert "New ranks 2 and 3 are in place" in str(caught.value)
    assert set(ranks.engines.hosts.values()) == {"node1"}
    assert_in_order(ranks, range(2))


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        ({"node1": 2}, "expected places for 4 ranks (got 2)"),
        ({"node1": 2, "node9": 2}, "launcher='ssh' failed with"),
    ],
    ids=["too-few", "unknown-host"],
)
def test_ssh_that_cannot_start_them_says_so_and_leaves_nothing(
    bed, tmp_path, monkeypatch, engines, said
):
    """
    A message that names the setting, and no engine left on any host.
    """
    stop_ranks()
    settings = SETTINGS.replace('{"node1": 2, "node2": 2}', repr(engines))
    configure(monkeypatch, tmp_path / "home", bed, settings)
    with pytest.raises(StartFailed) as caught:
        start_ranks(4, launcher="ssh", timeout_s=START_S)
    assert said in str(caught.value)
    assert "c.SSHEngineSetLauncher.engines" in str(caught.value)
    wanted_s = time.monotonic() + 15
    while engines_on(bed, 1) and time.monotonic() < wanted_s:
        time.sleep(0.2)
    assert engines_on(bed, 1) == 0
