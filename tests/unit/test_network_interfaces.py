"""
The network interface that leads to a host, and the messages where that is not clear.
"""

import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from ddp_lessons.errors import StartFailed
from ddp_lessons.ranks.kernel.bootstrap import listen_address
from ddp_lessons.ranks.kernel.launchers.ssh_launchers import SSHEngineSetLauncher
from ddp_lessons.ranks.kernel.launchers.supervised import RanksCluster
from ddp_lessons.ranks.system import network_interfaces
from ddp_lessons.ranks.system.network_interfaces import (
    GROUP_VARIABLES,
    address_towards,
    asks_name_server,
    bind_groups_towards,
    chosen_address,
    common_address,
    group_address,
    interface_of,
)

CONFIGURATION = """
c = get_config()
c.SSHLauncher.ssh_cmd = ["{ssh}"]
c.SSHEngineSetLauncher.engines = {engines}
"""
WAYS = {"10.0.0.1": "10.0.0.9", "10.0.0.2": "10.0.0.9", "10.1.0.1": "10.1.0.9"}
"""
For each host of a made-up network, this machine's address that leads there.
"""


@pytest.fixture
def ways(monkeypatch):
    """
    Put this machine on two made-up networks.
    """

    def towards(host):
        if host in ("localhost", "127.0.0.1"):
            return "127.0.0.1"
        if host not in WAYS:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return WAYS[host]

    monkeypatch.setattr(network_interfaces, "address_towards", towards)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """
    Return a function that makes a cluster of given hosts, with a fake ssh that prints a
    configuration.
    """
    monkeypatch.delenv("DDP_LESSONS_INTERFACE", raising=False)
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho "user ada"\necho "hostname 10.0.0.${2#*node}"\n')
    ssh.chmod(0o755)

    def make(engines, ssh=ssh):
        told = CONFIGURATION.format(ssh=ssh, engines=engines)
        (tmp_path / "ipcluster_config.py").write_text(told)
        return RanksCluster(profile_dir=str(tmp_path), cluster_id="some", shutdown_atexit=False)

    return make


def test_the_way_to_this_machine_is_loopback():
    """
    The address towards this machine is loopback, the one route that every machine has.
    """
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert "127.0.0.1" in [a.address for a in psutil.net_if_addrs()[interface_of("127.0.0.1")]]
    with pytest.raises(OSError, match=r"not known|No address|failure"):
        address_towards("no.such.host.invalid")


def test_a_process_that_asks_a_name_server_is_known_by_its_socket():
    """
    A process asks a name server while it has a socket that is connected to port 53. Another socket
    is none, and a process that has ended asks nobody.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question:
        question.connect(("127.0.0.1", 9))
        assert not asks_name_server(os.getpid())
        question.connect(("127.0.0.1", 53))  # a datagram socket: nobody has to listen there
        assert asks_name_server(os.getpid())
    assert not asks_name_server(os.getpid())
    assert not asks_name_server(2**22 + 1)


def test_an_address_of_nobody_is_refused():
    """
    An address that this machine does not have is refused, and the message lists its addresses.
    """
    with pytest.raises(StartFailed, match="No interface of this machine has the address"):
        interface_of("192.0.2.1")


def test_common_address_is_the_one_that_leads_to_all(ways):
    """
    The common address leads to all hosts. This machine may be one of them, and unknown names are
    left to ssh.
    """
    assert common_address({"node1": "10.0.0.1", "node2": "10.0.0.2"}) == "10.0.0.9"
    assert common_address({"here": "localhost"}) == "127.0.0.1"
    assert common_address({"here": "localhost", "node1": "10.0.0.1"}) == "10.0.0.9"
    assert common_address({"node1": "10.0.0.1", "typo": "nod2"}) == "10.0.0.9"


def test_common_address_is_not_guessed(ways):
    """
    With two networks, or none, the common address is not guessed, and the message asks the user to
    name one.
    """
    with pytest.raises(
        StartFailed, match=r"10\.0\.0\.9 for node1, 10\.1\.0\.9 for node2"
    ) as caught:
        common_address({"node1": "10.0.0.1", "node2": "10.1.0.1"})
    assert "Set DDP_LESSONS_INTERFACE" in str(caught.value)
    with pytest.raises(StartFailed, match="got none for typo"):
        common_address({"typo": "nod2"})


def test_a_person_may_name_an_interface_or_an_address():
    """
    A user may name an interface or an address, the two things that `ip address` shows.
    """
    loopback = interface_of("127.0.0.1")
    assert chosen_address(loopback) == chosen_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(StartFailed, match=r"in DDP_LESSONS_INTERFACE \(got 'eth77'\). It has "):
        chosen_address("eth77")


def test_the_controller_listens_where_its_ranks_are(ways, cluster, monkeypatch):
    """
    The controller listens on loopback for local ranks, and on the interface towards the hosts of
    ssh's configuration. Under Slurm the hosts are not known yet, so it listens everywhere.
    """
    hosts = cluster({"ada@node1": 2, "node2:2222": 2})
    assert listen_address("ssh", hosts) == "10.0.0.9"
    assert listen_address("ssh", cluster({})) == "127.0.0.1"
    assert [listen_address(name, None) for name in ("auto", "mpi")] == ["127.0.0.1"] * 2
    assert listen_address("slurm", hosts) == "*"
    monkeypatch.setenv("DDP_LESSONS_INTERFACE", interface_of("127.0.0.1"))
    assert [listen_address(name, hosts) for name in ("slurm", "ssh")] == ["127.0.0.1"] * 2
    monkeypatch.setenv("DDP_LESSONS_INTERFACE", "*")
    assert listen_address("ssh", hosts) == "*"


def test_an_ssh_that_does_not_run_is_named(cluster):
    """
    An ssh that cannot run is reported before anything waits for it.
    """
    with pytest.raises(StartFailed, match="expected ssh to know node1 of") as caught:
        listen_address("ssh", cluster({"node1": 2}, ssh="/nowhere/ssh"))
    assert "No such file or directory" in str(caught.value)


def test_nothing_is_copied_to_a_host(cluster):
    """
    No file is copied to a host. The keys reach an engine through ssh's standard input, because a
    file with them would stay there.
    """
    launcher = SSHEngineSetLauncher(parent=cluster({"node1": 1}), profile_dir="/somewhere")
    assert launcher.launcher_class(parent=launcher, profile_dir="/somewhere").to_send == []


def test_groups_listen_towards_the_kernel_unless_told(monkeypatch):
    """
    Groups use the interface that leads to the kernel, unless the login shell sets another: a
    cluster may have a faster one. A rank on the kernel's host does not use loopback, where ranks on
    other hosts cannot reach it.
    """
    monkeypatch.setattr(
        network_interfaces, "address_towards", {"10.0.0.1": "10.0.0.9", "here": "127.0.0.1"}.get
    )
    monkeypatch.setattr(network_interfaces, "interface_of", {"10.0.0.9": "eth5"}.get)
    for host, told, found in (
        ("10.0.0.1", [None, None], ["eth5", "eth5"]),
        ("10.0.0.1", [None, "ib0"], ["eth5", "ib0"]),
        ("here", [None, "ib0"], [None, "ib0"]),
    ):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in zip(GROUP_VARIABLES, told, strict=True):
                patch.setenv(name, value or "")  # the patch restores the variable
                if value is None:
                    os.environ.pop(name)
            bind_groups_towards(host)
            assert [os.environ.get(name) for name in GROUP_VARIABLES] == found


def test_group_address_is_that_of_gloo(monkeypatch):
    """
    The group's address is the one that Gloo uses, because rank 0's store listens there too.
    """
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface_of("127.0.0.1"))
    assert group_address() == "127.0.0.1"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")  # Gloo does the same
    assert group_address() == socket.gethostbyname(socket.gethostname())
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    with pytest.raises(StartFailed, match=r"in GLOO_SOCKET_IFNAME \(got 'eth77'\)"):
        group_address()


def test_who_is_told_both_asks_nobody(monkeypatch):
    """
    If both variables are set, no address is looked up, so that the start of local ranks costs
    nothing more.
    """
    for name in GROUP_VARIABLES:
        monkeypatch.setenv(name, "lo")
    monkeypatch.setattr(network_interfaces, "address_towards", SimpleNamespace())  # no call works
    bind_groups_towards("10.0.0.1")
