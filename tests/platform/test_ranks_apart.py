"""
Tests with ranks on hosts without shared files and with different clocks: rank 0 holds their store.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paths import ROOT
from ssh_ranks import (
    assert_in_order,
    hosts_up,
    listening_here,
    listening_on_host,
    ranks_on,
)
from throw_away_hosts import SCRIPT, environment, hosts, needs_hosts

from ddp_lessons.checks.kit.checking import run_and_judge
from ddp_lessons.checks.kit.task_registry import all_tasks
from ddp_lessons.errors import BadInput, RankDied, RankRaised
from ddp_lessons.ranks.kernel.cells import run_cell

SHIFT_S = 600
SAID = "open sesame"

HAS_CC = shutil.which("cc") is not None
SHIM = f"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {{
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += {SHIFT_S};
    return failed;
}}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {{
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed) now->tv_sec += {SHIFT_S};
    return failed;
}}
time_t time(time_t *told) {{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}}
"""
WRAPPER = """#!/bin/sh
if [ "$(hostname)" = node2 ]; then export LD_PRELOAD={shim}; fi
exec {python} "$@"
"""

pytestmark = [pytest.mark.timeout(400), needs_hosts]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """
    Return a home with an IPython folder. Each host has an empty folder of its own in its place.
    """
    folder = tmp_path_factory.mktemp("home")
    (folder / "ipython").mkdir()
    return folder


@pytest.fixture(scope="module")
def bed(tmp_path_factory, home):
    """
    Yield the folder of a test bed with two hosts that do not share the home.
    """
    with hosts_up(tmp_path_factory.mktemp("bed") / "hosts", "--private", home) as folder:
        yield folder


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    """
    Return a Python that sees node2's clock ten minutes ahead, like a host without clock
    synchronisation.
    """
    if not HAS_CC:
        return sys.executable
    folder = tmp_path_factory.mktemp("clock")
    shim, wrapper = folder / "ahead.so", folder / "python"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(shim), "-x", "c", "-"],
        input=SHIM, text=True, check=True,
    )  # fmt: skip
    wrapper.write_text(WRAPPER.format(shim=shim, python=sys.executable))
    wrapper.chmod(0o755)
    return str(wrapper)


@pytest.fixture(scope="module")
def ranks(sockets_before, bed, home, shifted):
    """
    Yield two ranks on each host, which each test leaves usable.
    """
    with ranks_on(bed, home / "ipython", python=shifted) as started:
        yield started


def test_they_meet_without_a_file(ranks, home, bed):
    """
    The ranks join a group without shared files. No host has a store or a file with the connection's
    keys, and no command line, which all users of a host can read, has the keys.
    """
    assert not ranks.engines.shares_files
    assert ranks.engines.hosts == {0: "node1", 1: "node1", 2: "node2", 3: "node2"}
    assert_in_order(ranks, range(4))
    assert not list((home / "ipython/profile_default/security").glob("*store*"))
    told = json.loads(Path(ranks.cluster.controller.connection_files["engine"]).read_text())
    for number in (1, 2):
        found = hosts("run", number, "find", str(home), "-name", "*.json", folder=bed)
        assert found.stdout == ""
        lines = hosts("run", number, "ps", "axww", folder=bed).stdout
        assert "ranks.supervisor.host_agent" in lines
        assert not any(told[name] in lines for name in ("key", "curve_serverkey"))


def test_those_who_listen_are_those_of_the_table(ranks, bed, sockets_before):
    """
    The table in docs/security.md lists exactly the processes that listen when ranks are on other
    hosts, with their networks.
    """
    here = {("your machine", *who) for who in listening_here(ranks, bed, sockets_before)}
    there = {
        ("each host", *who)
        for number in (1, 2)
        for who in listening_on_host(bed, number)
        if who[0] != "sshd"  # sshd belongs to the administrator
    }
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (your machine|each host) \| ([^|]+) \|", text, re.MULTILINE)
    assert here | there == {(where, process, interface) for process, where, interface in rows}
    assert len(rows) >= 4


SUBSCRIBE = """
import json, sys, zmq
told, context = json.load(sys.stdin), zmq.Context()


def subscribe(port, key=None):
    sock = context.socket(zmq.SUB)
    sock.subscribe(b"")
    if key:
        sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
        sock.curve_serverkey = key.encode()
    sock.connect(f"{told['interface']}:{port}")
    return sock


without = [subscribe(port) for port in told["ports"]]
hears = subscribe(told["iopub"], told["curve_serverkey"])
num_heard = 0
while num_heard < 3:  # what comes to all has come to those without a key by the third time
    num_heard += told["said"].encode() in b"".join(hears.recv_multipart())
print(json.dumps([bool(sock.poll(0)) for sock in without]))
"""


def test_who_has_no_key_hears_nothing_on_the_network(ranks, bed):
    """
    A client on the network that has no key receives no message, neither code nor output.
    """
    files = ranks.cluster.controller.connection_files
    client, engine = (json.loads(Path(files[kind]).read_text()) for kind in ("client", "engine"))
    assert client["curve_serverkey"]
    assert client["key"]
    ports = {value for told in (client, engine) for value in told.values() if _is_port(value)}
    assert len(ports) >= 12
    told = {**client, "ports": sorted(ports), "said": SAID}
    command = ["bash", str(SCRIPT), "run", "2", sys.executable, "-c", SUBSCRIBE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(bed), **pipes) as listener:
        listener.stdin.write(json.dumps(told))
        listener.stdin.close()
        deadline = time.monotonic() + 60
        while listener.poll() is None and time.monotonic() < deadline:
            run_cell(ranks, "print('open ' + 'sesame')", targets=[0])
        listener.kill()
        heard = json.loads(listener.stdout.read())
    assert heard == [False] * len(ports)


def _is_port(value):
    return isinstance(value, int) and value > 1023


def test_a_rank_that_raises_frees_the_others(ranks):
    """
    An error of one rank releases the others from a collective, and from a wait for a key in rank
    0's store, which has no file.
    """
    with pytest.raises(RankRaised, match="rank 1 raised ValueError: one"):
        run_cell(ranks, "if mine == 1: raise ValueError('one')\ndist.all_reduce(one)")
    assert_in_order(ranks, range(4))
    with pytest.raises(RankRaised, match="rank 1 raised ValueError: one"):
        run_cell(ranks, "if mine == 1: raise ValueError('one')\ngroup = dist.new_group([0, 1])")
    assert_in_order(ranks, range(4))


def test_the_rank_that_has_the_store_may_die(ranks):
    """
    If rank 0 dies, which holds the store, a new rank 0 opens a new store, and the ranks regroup.
    """
    with pytest.raises(RankDied, match="rank 0 on node1 died") as caught:
        run_cell(ranks, "if mine == 0: os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(one)")
    assert "A new rank 0 is in place" in str(caught.value)
    assert_in_order(ranks, range(1, 4))
    run_cell(ranks, "import os, signal, torch\nmine, one = dist.get_rank(), torch.ones(1)")


def test_a_group_needs_the_key_of_its_names(ranks):
    """
    All keys of the group in the store begin with a secret prefix, so that another client of the
    store cannot meet the group by accident. An attacker can list the keys, as docs/security.md
    says; if torch prevents that, the page changes.
    """
    run_cell(ranks, "store = dist.distributed_c10d._get_default_store()")
    run_cell(ranks, "while hasattr(store, 'underlying_store'): store = store.underlying_store")
    run_cell(ranks, "names = [name for name in store.list_keys() if name != 'init/']")
    for names in ranks.view["names"]:
        assert len({name.partition("/")[0] for name in names}) == 1
        assert all(re.match(r"[0-9a-f]{64}/", name) for name in names)


def test_what_needs_common_files_is_refused(ranks):
    """
    A check is refused, because its ranks write their records into files for the kernel. The ranks
    keep their group.
    """
    with pytest.raises(BadInput, match="Ranks have no files in common: expected hosts that share"):
        run_and_judge(all_tasks()["02.1"], ranks)
    run_cell(ranks, "dist.all_reduce(there)")  # in their old group
    assert_in_order(ranks, range(4))


@pytest.mark.skipif(not HAS_CC, reason="needs a C compiler to shift a clock")
def test_clocks_that_differ_changed_nothing_of_this(ranks):
    """
    The clock of node2 is ten minutes ahead, so all tests of this module passed with clocks that
    differ.
    """
    run_cell(ranks, "import time\nnow_s = time.time()")
    ahead_s = [now_s - time.time() for now_s in ranks.view["now_s"]]
    assert [round(seconds / SHIFT_S) for seconds in ahead_s] == [0, 0, 1, 1]
