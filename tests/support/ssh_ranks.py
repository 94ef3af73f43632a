"""
Ranks by SSH on the hosts of a test bed, and the processes that listen there.
"""

import contextlib
import functools
import json
import os
import sys

import psutil
import pytest
from launched import blocks
from throw_away_hosts import hosts, net_of, traces
from waiting import wait_until

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.ranks.kernel.cells import run_cell

CONFIGURATION = """
c = get_config()
c.SSHLauncher.ssh_cmd = ["ssh", "-F", "{folder}/ssh_config"]
c.SSHLauncher.scp_cmd = ["scp", "-F", "{folder}/ssh_config"]
"""
START, SETTINGS = blocks("ssh.md", "python")
PAGES_PYTHON = "/home/ada/course/.venv/bin/python"
START_S = 120.0
LIST = """
import json, psutil
found = []
for process in psutil.process_iter(["name", "cmdline"]):
    for connection in process.net_connections("inet"):
        if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):  # NONE is UDP
            words = " ".join([process.info["name"], *process.info["cmdline"]])
            found.append((words, connection.laddr.ip, connection.laddr.port))
print(json.dumps(found))
"""
PROCESSES = {"engine.nanny": "KernelNanny", "rank ": "rank", "sshd": "sshd"}
"""
{part of a process's name or command line: the process's short name}, for processes that may listen
on a host.
"""


@contextlib.contextmanager
def hosts_up(folder, *arguments):
    """
    Give the folder of a test bed with two hosts, and assert that nothing is left of it in the end.
    """
    done = hosts("up", 2, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    net = net_of(folder)
    yield folder
    hosts("down", folder=folder)
    assert traces(folder, net) == []


def configure(patch, home, folder, settings=SETTINGS, python=sys.executable):
    """
    Write ipyparallel's configuration, as the page shows it, into an IPython folder.

    Args:
        patch, home, folder: pytest's MonkeyPatch, the IPython folder, and the test bed's folder.
        settings: The settings from the page.
        python: The path of the hosts' Python.
    """
    profile = home / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipcluster_config.py").write_text(
        CONFIGURATION.format(folder=folder) + settings.replace(PAGES_PYTHON, str(python))
    )
    patch.setenv("IPYTHONDIR", str(home))


@contextlib.contextmanager
def ranks_on(folder, home, python=sys.executable):
    """
    Start two ranks on each of two hosts, and stop them after the block.
    """
    with pytest.MonkeyPatch.context() as patch:
        configure(patch, home, folder, python=python)
        names = {"start_ranks": functools.partial(start_ranks, timeout_s=START_S)}
        exec(START, names)
        started = names["ranks"]
        started.view.execute("import os, signal, socket, time, torch, torch.distributed as dist")
        started.view.execute("mine, one = dist.get_rank(), torch.ones(1)")
        yield started
        stop_ranks()
    # If a host's login takes too long, its engines end without a signal from here.
    wait_until(
        lambda: [engines_on(folder, number) for number in (1, 2)] == [0, 0],
        30,
        "the end of all engines",
    )


def engines_on(folder, number):
    """
    Return the number of engines on a host: 0 if the host is off.
    """
    names = hosts("run", number, "ps", "ax", "-o", "comm", folder=folder).stdout.splitlines()
    return sum(name.startswith("rank ") for name in names)


def assert_in_order(ranks, kept):
    """
    Assert that the next collective works, and that the ranks in `kept` still have their variables.
    """
    run_cell(ranks, "import torch, torch.distributed as dist\nthere = torch.ones(1)")
    run_cell(ranks, "dist.all_reduce(there)\nnum_there = int(there.item())")
    assert ranks.view["num_there"] == [len(ranks)] * len(ranks)
    assert [ranks[rank]["mine"] for rank in kept] == list(kept)


def listening_on_host(folder, number):
    """
    Return the processes that listen on a host, as a set of (process, interface).

    The interface is "loopback", "the cluster's" for the host's own address on the switch, or any
    other address as it is, such as 0.0.0.0.
    """
    done = hosts("run", number, sys.executable, "-c", LIST, folder=folder)
    assert done.returncode == 0, done.stderr
    own = f"{net_of(folder)}.{100 + number}"
    found = set()
    for words, address, _ in json.loads(done.stdout):
        name = next((name for part, name in PROCESSES.items() if part in words), words)
        found.add((name, _interface(address, own)))
    return found


def listening_here(ranks, folder, but=()):
    """
    Return the processes of the kernel's machine that listen, in the form of `listening_on_host`.

    Args:
        ranks: The Ranks.
        folder: The test bed's folder.
        but: Sockets to leave out, as `own_sockets` returns them.
    """
    controller = psutil.Process(ranks.supervisor.controller_pid)
    named = {process.pid: "controller" for process in (controller, *controller.children(True))}
    named |= {os.getpid(): "kernel", ranks.supervisor.supervisor_pid: "supervisor"}
    own = f"{net_of(folder)}.100"
    return {
        (named.get(pid, "other"), _interface(address, own))
        for pid, address, _ in own_sockets() - set(but)
    }


def own_sockets():
    """
    Return (process, address, port) of each socket on which this process or a descendant listens.
    """
    found = set()
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("inet"):
                if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                    found.add((process.pid, connection.laddr.ip, connection.laddr.port))
    return found


def _interface(address, own):
    if address in ("127.0.0.1", "::1"):
        return "loopback"
    return "the cluster's" if address == own else address
