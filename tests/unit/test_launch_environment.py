"""
The environment of a launched process: its rank, the world size, and the address where ranks meet.
"""

import socket
from pathlib import Path

import pytest

from ddp_lessons.errors import BadInput
from ddp_lessons.launch import (
    Place,
    adopt,
    environment,
    first_host,
    free_port,
    launcher_of,
    naive,
    place_of,
)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node3",
    "MASTER_PORT": "41234",
}
MPIEXEC = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "40017",
    "SLURM_JOB_NODELIST": "gpu[07-09,12],big1",
}


def test_torchrun_has_torchs_own_words():
    """
    torchrun sets torch's own variables, so the naive way reads them too.
    """
    place = Place(rank=5, world_size=8, local_rank=1, address="node3", port=41234)
    assert place_of(TORCHRUN) == naive.place_of(TORCHRUN) == place
    assert place.variables() == TORCHRUN


@pytest.mark.parametrize(
    ("environ", "launcher", "place"),
    [
        (MPIEXEC, "mpiexec", Place(2, 4, 0, "127.0.0.1", 29500)),
        (MPIEXEC | {"MASTER_ADDR": "a", "MASTER_PORT": "7"}, "mpiexec", Place(2, 4, 0, "a", 7)),
        (SRUN, "srun", Place(3, 6, 1, "gpu07", 20017)),
        (SRUN | {"MASTER_PORT": "7"}, "srun", Place(3, 6, 1, "gpu07", 7)),
        ({}, None, Place(0, 1, 0, "127.0.0.1", 29500)),
    ],
)
def test_other_launchers_have_other_words(environ, launcher, place):
    """
    mpiexec and srun set other variables. MASTER_ADDR and MASTER_PORT take precedence if they are
    set.
    """
    assert launcher_of(environ) == launcher
    assert place_of(environ) == place
    with pytest.raises(KeyError, match="RANK"):
        naive.place_of(environ)


def test_innermost_launcher_wins():
    """
    The innermost launcher counts: under torchrun in a task of srun, or mpiexec in a batch file,
    Slurm's variables are set too.
    """
    assert place_of(SRUN | TORCHRUN) == place_of(TORCHRUN)
    assert place_of(SRUN | MPIEXEC) == place_of(MPIEXEC)


def test_adopt_tells_torch_in_its_own_words():
    """
    `adopt` sets torch's own variables, so that torch then needs no help.
    """
    environ = dict(MPIEXEC)
    place = adopt(environ)
    assert place_of(environ) == naive.place_of(environ) == place


def test_adopt_writes_into_this_process_if_nothing_is_named(monkeypatch):
    """
    `adopt` without an argument changes this process's environment, as a script needs.
    """
    for name in (*TORCHRUN, *MPIEXEC, *SRUN):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**TORCHRUN, "RANK": "6"}.items():
        monkeypatch.setenv(name, value)
    assert adopt().rank == 6


@pytest.mark.parametrize(
    ("environ", "got"),
    [
        ({"RANK": "0", "LOCAL_RANK": "0"}, "expected one in WORLD_SIZE (got None)"),
        (TORCHRUN | {"MASTER_PORT": "x"}, "expected one in MASTER_PORT (got 'x')"),
    ],
)
def test_place_of_half_an_environment_is_refused(environ, got):
    """
    An incomplete environment is refused, and the message names the variable.
    """
    with pytest.raises(BadInput) as caught:
        place_of(environ)
    assert got in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-4]", "n1"),
        ("n[3,5-6]", "n3"),
        ("gpu[007-010],big[1-2]", "gpu007"),
        ("rack2,n[1-4]", "rack2"),
        ("n[1-2].cluster", "n1.cluster"),
    ],
)
def test_first_host_of_a_list(nodes, first):
    """
    The first host is found in Slurm's short form of a list of nodes.
    """
    assert first_host(nodes) == first


def test_a_free_port_is_none_that_the_system_gives_to_others():
    """
    A port from `free_port` is outside the range from which the system assigns ports, because ranks
    bind it seconds later.
    """
    given = range(*map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))
    ports = {free_port() for _ in range(50)}
    assert not any(port in given for port in ports)
    assert len(ports) > 40


def test_a_port_that_somebody_uses_is_not_free(monkeypatch):
    """
    A port that is in use is not returned: here the only candidate is in use.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(environment, "_NUM_OWN_PORTS", 1)
        monkeypatch.setattr(environment, "_first_given_port", lambda: port + 1)
        assert free_port() != port


@pytest.mark.parametrize("first", [1024, 11_000])
def test_a_free_port_is_found_where_the_system_gives_all(monkeypatch, first):
    """
    A port is found also if the system assigns from nearly all ports. Ports below 1024 belong to
    root.
    """
    monkeypatch.setattr(environment, "_first_given_port", lambda: first)
    assert free_port() > 1023


def test_a_free_port_is_found_where_the_system_does_not_tell_its_range(monkeypatch, tmp_path):
    """
    Where the system does not report its range, the range of the standard is assumed.
    """
    monkeypatch.setattr(environment, "_GIVEN_PORTS", tmp_path / "missing")
    assert 39152 <= free_port() < 49152
