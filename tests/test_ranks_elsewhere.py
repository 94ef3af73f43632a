"""
Ranks on two hosts, started by SSH: what is promised of a rank at home holds of one far away.

It takes minutes, so it is run by `make soak` and in CI, and not by `make test`.
"""

import os
import re
import signal
import threading
import time

import pytest
from ssh_ranks import (
    SETTINGS,
    START_S,
    assert_in_order,
    configure,
    engines_on,
    hosts_up,
    listening_here,
    listening_on_host,
    ranks_on,
)
from throw_away_hosts import hosts, needs_hosts

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.errors import CellStopped, RankDied, RankRaised, StartFailed
from ddp_lessons.ranks.kernel.cells import run_cell

pytestmark = [pytest.mark.soak, pytest.mark.ranks, pytest.mark.timeout(400), needs_hosts]


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    """
    Give the folder of two hosts.
    """
    with hosts_up(tmp_path_factory.mktemp("bed") / "hosts") as folder:
        yield folder


@pytest.fixture(scope="module")
def ranks(sockets_before, bed, tmp_path_factory):
    """
    Two ranks on each host. Each test leaves them in order, the last one without a host.
    """
    with ranks_on(bed, tmp_path_factory.mktemp("home")) as started:
        yield started


def test_ranks_are_where_they_were_asked_for(ranks, bed):
    """
    Two on each host, one group, and the table says where.
    """
    run_cell(ranks, "host = socket.gethostname()")
    assert ranks.view["host"] == ["node1", "node1", "node2", "node2"]
    assert re.search(r"^3 +idle +cpu +\d+ +node2$", repr(ranks.status()), re.MULTILINE)
    assert (engines_on(bed, 1), engines_on(bed, 2)) == (2, 2)
    assert ranks.engines.shares_files
    assert_in_order(ranks, range(4))


def test_nobody_listens_to_other_networks(ranks, bed, sockets_before):
    """
    A host is in several networks, some of which anybody may reach. Ours is the one of the ranks.
    """
    found = listening_here(ranks, bed, sockets_before)
    found = found.union(*(listening_on_host(bed, number) for number in (1, 2)))
    assert {interface for _, interface in found} == {"loopback", "the cluster's"}
    assert {process for process, _ in found} == {"controller", "nanny", "rank", "sshd"}


def test_who_listens_to_every_network_is_found(ranks, bed):
    """
    This proves the test above: a rank opens such a socket, of IPv4 and of 6.
    """
    run_cell(ranks, "doors = [socket.create_server(('', 0))] if mine == 3 else []")
    assert ("rank", "0.0.0.0") in listening_on_host(bed, 2)
    run_cell(ranks, "for door in doors: door.close()")
    run_cell(ranks, "doors = [dist.TCPStore('localhost', 0, is_master=True)] if mine == 3 else []")
    assert {("rank", "::"), ("rank", "0.0.0.0")} & listening_on_host(bed, 2)
    run_cell(ranks, "del doors")
    assert ("rank", "::") not in listening_on_host(bed, 2)


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
    with pytest.raises(RankDied, match="rank 3 on node2 died") as caught:
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
    with pytest.raises(RankDied, match=r"rank 2 on node2 died.*\nrank 3 on node2 died") as caught:
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
