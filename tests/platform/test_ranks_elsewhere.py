"""
Tests of ranks on two hosts, started by SSH: faults are handled as for ranks on this machine.
"""

import os
import re
import signal
import threading
import time

import pytest
from kernels import running_kernel
from launched import failing
from processes import new_mark, wait_until_gone
from ssh_ranks import (
    SETTINGS,
    START,
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
from waiting import wait_until

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.errors import CellStopped, RankDied, RankRaised, StartFailed
from ddp_lessons.ranks.kernel.cells import run_cell

GONE_S = 30.0
STOP_S = 12.0
UNKNOWN_KEY = 'c.SSHLauncher.ssh_args = ["-o", "UserKnownHostsFile=/dev/null"]\n'
LAUNCHED = "[one.state for all in ranks.cluster.engines.values() for one in all.launchers.values()]"

pytestmark = [pytest.mark.timeout(400), needs_hosts]


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    """
    Yield the folder of a test bed with two hosts.
    """
    with hosts_up(tmp_path_factory.mktemp("bed") / "hosts") as folder:
        yield folder


@pytest.fixture(scope="module")
def ranks(sockets_before, bed, tmp_path_factory):
    """
    Yield two ranks on each host, which each test leaves usable.
    """
    with ranks_on(bed, tmp_path_factory.mktemp("home")) as started:
        yield started


def test_ranks_are_where_they_were_asked_for(ranks, bed):
    """
    Two ranks run on each host, in one group, and the table names their hosts.
    """
    run_cell(ranks, "host = socket.gethostname()")
    assert ranks.view["host"] == ["node1", "node1", "node2", "node2"]
    assert re.search(r"^3 +idle +cpu +\d+ +node2$", repr(ranks.status()), re.MULTILINE)
    assert (engines_on(bed, 1), engines_on(bed, 2)) == (2, 2)
    assert ranks.engines.shares_files
    assert_in_order(ranks, range(4))


def test_nobody_listens_to_other_networks(ranks, bed, sockets_before):
    """
    No process listens to a network other than loopback and the cluster's: a host may be in networks
    that others can reach.
    """
    found = listening_here(ranks, bed, sockets_before)
    found = found.union(*(listening_on_host(bed, number) for number in (1, 2)))
    assert {interface for _, interface in found} == {"loopback", "the cluster's"}
    assert {process for process, _ in found} == {"controller", "KernelNanny", "rank", "sshd"}


def test_who_listens_to_every_network_is_found(ranks, bed):
    """
    A socket that listens to every network is found, of IPv4 and of IPv6, so the test above can
    fail.
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
    A rank that raises is named, and the ranks that wait for it in an all-reduce are released.
    """
    with pytest.raises(RankRaised, match="rank 2 raised ValueError: two") as caught:
        run_cell(ranks, "if dist.get_rank() == 2: raise ValueError('two')\ndist.all_reduce(one)")
    assert "ranks 0, 1 and 3 were released" in str(caught.value)
    assert_in_order(ranks, range(4))


def test_a_deadlock_is_ended_and_told_with_its_hosts(ranks):
    """
    A deadlock is ended and explained with the ranks' hosts: the `KernelNanny` process of each
    engine does not count as a child process that may still act.
    """
    with pytest.raises(RankRaised, match="Deadlock: rank 1 finished") as caught:
        run_cell(ranks, "if dist.get_rank() != 1: dist.all_reduce(one)")
    assert re.search("^3 on node2 .*all_reduce", str(caught.value), re.MULTILINE)
    assert_in_order(ranks, range(4))


def test_stop_frees_ranks_on_every_host(ranks):
    """
    Stop releases ranks on all hosts, though the kernel cannot signal them itself.
    """
    stop = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
    stop.start()
    with pytest.raises(CellStopped, match="rank 0 waits for them in all_reduce"):
        run_cell(ranks, "time.sleep(60 if mine else 0)\ndist.all_reduce(one)")
    stop.join()
    assert_in_order(ranks, range(4))


def test_a_cable_that_is_out_for_seconds_ends_no_cell(ranks, bed):
    """
    A link that fails for 3 s ends no cell, because it may be only slow.
    """
    hosts("cut", 2, folder=bed)
    mend = threading.Timer(3.0, hosts, ("mend", 2), {"folder": bed})
    mend.start()
    run_cell(ranks, "dist.all_reduce(one)")
    mend.join()
    assert_in_order(ranks, range(4))


def test_a_rank_that_is_killed_gets_a_new_process_where_it_was(ranks):
    """
    A killed rank is replaced on the same host, and the other ranks keep their variables.
    """
    with pytest.raises(RankDied, match="rank 3 on node2 died") as caught:
        run_cell(ranks, "if mine == 3: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(one)")
    assert "A new rank 3 is in place" in str(caught.value)
    assert ranks.engines.hosts[3] == "node2"
    assert_in_order(ranks, range(3))


@pytest.fixture
def new_ranks(bed, tmp_path):
    """
    Yield two ranks on each host for one test, which may leave them on other hosts.
    """
    hosts("mend", 2, folder=bed)
    with ranks_on(bed, tmp_path / "home") as started:
        yield started


def told_of_node2(ranks, fault, bed):
    """
    Cause a fault of node2 while all ranks run a cell, and return the cell's message.

    Args:
        ranks: The Ranks.
        fault: The command of `scripts/hosts.sh`: "cut", "mute" or "off".
        bed: The folder of the test bed.
    """
    fault_comes = threading.Timer(1.0, hosts, (fault, 2), {"folder": bed})
    fault_comes.start()
    lost = "rank 2 on node2 is lost: node2 has not answered for 8 s"
    said = failing(ranks, "time.sleep(3)\ndist.all_reduce(one)", RankDied, lost, GONE_S)
    fault_comes.join()
    assert "rank 3 on node2 is lost" in said
    assert (
        "No rank on node2 is left. The next cell begins with new processes for ranks 2 and 3"
        in said
    )
    return said


@pytest.mark.parametrize("fault", ["cut", "mute"])
def test_a_host_that_comes_back_too_late_has_nothing_left_of_ours(new_ranks, bed, capsys, fault):
    """
    A host that comes back after its ranks were replaced ends its old ranks, even if it could hear
    the controller all the time and only its answers were lost.
    """
    ranks = new_ranks
    told_of_node2(ranks, fault, bed)
    assert_in_order(ranks, range(2))
    assert "New ranks 2 and 3 are in place" in capsys.readouterr().out
    assert set(ranks.engines.hosts.values()) == {"node1"}
    assert hosts("mend", 2, folder=bed).returncode == 0
    wait_until(lambda: engines_on(bed, 2) == 0, GONE_S, "the engines of node2 to end")
    assert_in_order(ranks, range(2))


def test_a_link_that_is_out_for_ten_seconds_costs_the_ranks_behind_it(new_ranks, bed):
    """
    A link that fails for 11 s costs the ranks behind it, because the kernel cannot distinguish it
    from a host that is off and waits only 8 s. The new ranks start on the same host.
    """
    ranks = new_ranks
    mend = threading.Timer(11.0, hosts, ("mend", 2), {"folder": bed})
    mend.start()
    told_of_node2(ranks, "cut", bed)
    mend.join()
    assert_in_order(ranks, range(2))
    assert ranks.engines.hosts == {0: "node1", 1: "node1", 2: "node2", 3: "node2"}
    wait_until(lambda: engines_on(bed, 2) == 2, GONE_S, "two engines on node2, and no more")


def test_a_host_that_vanishes_between_two_cells_is_told_in_the_next(new_ranks, bed):
    """
    A host that vanishes between two cells is reported by the next cell, which does not run: it may
    need the variables of all ranks.
    """
    ranks = new_ranks
    assert hosts("cut", 2, folder=bed).returncode == 0
    wait_until(lambda: ranks.dead == [2, 3], GONE_S, "news of the deaths")
    said = failing(ranks, "ran = True", RankDied, "rank 2 on node2 is lost", 2.0)
    assert "This cell was not run" in said
    assert_in_order(ranks, range(2))
    run_cell(ranks, "has_run = 'ran' in globals()")
    assert ranks.view["has_run"] == [False] * 4


def test_ranks_are_named_as_lost_while_no_host_is_left(new_ranks, bed):
    """
    While no host is reachable, every cell fails and names the lost ranks; once hosts are back, the
    ranks are replaced.
    """
    ranks = new_ranks
    for number in (1, 2):
        assert hosts("cut", number, folder=bed).returncode == 0
    said = failing(ranks, "dist.all_reduce(one)", RankDied, "rank 0 on node1 is lost", GONE_S)
    assert "No rank on node1 and node2 is left" in said
    with pytest.raises(StartFailed, match="Rank 0 could not be replaced: no host lets us in"):
        run_cell(ranks, "pass")
    for number in (1, 2):
        assert hosts("mend", number, folder=bed).returncode == 0
    assert_in_order(ranks, [])
    assert set(ranks.engines.hosts.values()) == {"node1", "node2"}


def test_ranks_are_stopped_without_a_host_that_is_gone(new_ranks, bed):
    """
    Ranks are stopped within STOP_S though a host is unreachable, and the engines on that host end
    by themselves.
    """
    assert hosts("cut", 2, folder=bed).returncode == 0
    began = time.monotonic()
    new_ranks.stop()
    assert time.monotonic() - began < STOP_S
    assert engines_on(bed, 1) == 0
    wait_until(lambda: engines_on(bed, 2) == 0, GONE_S, "the engines of node2 to end")


def test_nothing_outlives_a_kernel_that_is_killed(bed, tmp_path, monkeypatch):
    """
    If the kernel is killed during a cell, the ranks on all hosts end by themselves, because they no
    longer hear their controller.
    """
    stop_ranks()
    hosts("mend", 2, folder=bed)
    configure(monkeypatch, tmp_path / "home", bed)
    mark = new_mark()
    with running_kernel(**mark) as kernel:
        kernel.run("from ddp_lessons import start_ranks")
        assert kernel.run(START, timeout_s=START_S).status == "ok"
        # Stop signals the kernel's whole process group. No engine may count as ended by that.
        stopped = kernel.run("%%px\nimport time\ntime.sleep(600)", stop_after_s=[2.0])
        assert stopped.ename == "CellStopped"
        assert kernel.value(LAUNCHED) == ["running"] * 4
        kernel.client.execute("%%px\ntime.sleep(600)")
        assert (engines_on(bed, 1), engines_on(bed, 2)) == (2, 2)
        os.kill(kernel.pid, signal.SIGKILL)
        wait_until_gone(mark, GONE_S)
        for number in (1, 2):
            wait_until(lambda n=number: engines_on(bed, n) == 0, GONE_S, f"node{number}'s engines")


def test_what_was_on_a_host_that_vanishes_comes_up_on_another(new_ranks, bed, capsys):
    """
    If a host is switched off, its ranks are replaced on the other host. The host ends no
    connection, so only its silence shows the fault.
    """
    ranks = new_ranks
    told_of_node2(ranks, "off", bed)
    assert_in_order(ranks, range(2))
    assert "New ranks 2 and 3 are in place" in capsys.readouterr().out
    assert set(ranks.engines.hosts.values()) == {"node1"}


def test_a_python_without_the_course_is_told_with_its_words(bed, tmp_path, monkeypatch):
    """
    If a host's Python lacks the course, the start fails with Python's own error, long before the
    time limit.
    """
    stop_ranks()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named ddp_lessons >&2\nexit 1\n")
    python.chmod(0o755)
    configure(monkeypatch, tmp_path / "home", bed, python=python)
    began = time.monotonic()
    with pytest.raises(StartFailed, match="node1: No module named ddp_lessons"):
        start_ranks(2, launcher="ssh", timeout_s=START_S)
    assert time.monotonic() - began < START_S / 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (SETTINGS.replace(', "node2": 2', ""), "expected places for 4 ranks (got 2)"),
        (SETTINGS.replace("node2", "node9"), "launcher='ssh' failed with"),
        (f"{SETTINGS}{UNKNOWN_KEY}", "launcher='ssh' failed with"),
    ],
    ids=["too-few", "unknown-host", "unknown-key"],
)
def test_ssh_that_cannot_start_them_says_so_and_leaves_nothing(
    bed, tmp_path, monkeypatch, settings, said
):
    """
    A start that SSH cannot do fails with a message that names the setting, and leaves no engine on
    a host.
    """
    stop_ranks()
    configure(monkeypatch, tmp_path / "home", bed, settings)
    with pytest.raises(StartFailed) as caught:
        start_ranks(4, launcher="ssh", timeout_s=START_S)
    assert said in str(caught.value)
    assert "c.SSHEngineSetLauncher.engines" in str(caught.value)
    wait_until(lambda: engines_on(bed, 1) == 0, GONE_S, "the engines of node1 to end")
