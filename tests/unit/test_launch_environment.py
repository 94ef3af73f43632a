"""
Whoever has started a process, it finds its number, that of all, and where they meet.
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
    Nothing is to be translated, and the naive way does as well.
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
    What MASTER_ADDR and MASTER_PORT say counts, if somebody has set them.
    """
    assert launcher_of(environ) == launcher
    assert place_of(environ) == place
    with pytest.raises(KeyError, match="RANK"):
        naive.place_of(environ)


def test_innermost_launcher_wins():
    """
    torchrun in a task of srun, mpiexec in a batch file: Slurm's variables are there, too.
    """
    assert place_of(SRUN | TORCHRUN) == place_of(TORCHRUN)
    assert place_of(SRUN | MPIEXEC) == place_of(MPIEXEC)


def test_adopt_tells_torch_in_its_own_words():
    """
    After it, torch needs no help.
    """
    environ = dict(MPIEXEC)
    place = adopt(environ)
    assert place_of(environ) == naive.place_of(environ) == place


def test_adopt_writes_into_this_process_if_nothing_is_named(monkeypatch):
    """
    That is what a script wants.
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
    The variable is named.
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
    Slurm writes lists of machines shorter than they are.
    """
    assert first_host(nodes) == first


def test_a_free_port_is_none_that_the_system_gives_to_others():
    """
    Ranks bind it seconds later, when others have asked for any port meanwhile.
    """
    given = range(*map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))
    ports = {free_port() for _ in range(50)}
    assert not any(port in given for port in ports)
    assert len(ports) > 40


def test_a_port_that_somebody_uses_is_not_free(monkeypatch):
    """
    The one port that is ours is held.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(environment, "_NUM_OWN_PORTS", 1)
        monkeypatch.setattr(environment, "_first_given_port", lambda: port + 1)
        assert free_port() != port


@pytest.mark.parametrize("first", [1024, 11_000])
def test_a_free_port_is_found_where_the_system_gives_all(monkeypatch, first):
    """
    No port is left to us there, and those below are root's.
    """
    monkeypatch.setattr(environment, "_first_given_port", lambda: first)
    assert free_port() > 1023


def test_a_free_port_is_found_where_the_system_does_not_tell_its_range(monkeypatch, tmp_path):
    """
    Other systems keep to the range of the standard.
    """
    monkeypatch.setattr(environment, "_GIVEN_PORTS", tmp_path / "missing")
    assert 39152 <= free_port() < 49152
