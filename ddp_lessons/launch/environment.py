"""
Who am I? What each launcher writes into the environment of the processes that it starts.

A launcher starts processes and tells each its number. torch's own words for that are RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, and torchrun sets them all. Others have words
of their own, and say nothing of where ranks meet.

Legend: rank r of w; the local rank counts the processes of one machine.
"""

import os
import random
import re
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput

PORT = 29500
"""
Where ranks meet if nobody says: torchrun's own default.
"""
_GIVEN_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_NUM_OWN_PORTS, _LAST_OF_ROOT, _MOST_TRIES = 10_000, 1023, 100

_WORDS = (
    # launcher, the names of rank, world size and local rank
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("mpiexec", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class Place:
    """
    Hold what a process must know to join a group.

    Args:
        rank: Its number.
        world_size: How many processes there are.
        local_rank: Its number among those of its machine. It chooses the GPU.
        address: The machine of rank 0.
        port: The port of the store there.
    """

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int

    def variables(self) -> dict[str, str]:
        """
        Return the environment variables that tell torch all of it, as torchrun sets them.
        """
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def launcher_of(environ: Mapping[str, str]) -> str | None:
    """
    Return who has started a process: "torchrun", "mpiexec", "srun", or None.

    The innermost launcher wins: in a job of Slurm, torchrun may have started it, and torchrun's
    processes have Slurm's variables too, those of torchrun itself.

    Args:
        environ: Its environment, such as os.environ.
    """
    return next((name for name, rank, *_ in _WORDS if rank in environ), None)


def place_of(environ: Mapping[str, str]) -> Place:
    """
    Return the place of a process, whichever launcher has started it.

    Without any launcher it is alone: rank 0 of 1.

    Args:
        environ: Its environment, such as os.environ.

    Returns:
        Place: Ranks meet where MASTER_ADDR and MASTER_PORT say. Without them it is this machine for
        mpiexec, and for srun the first one of the job, at a port that follows from the job's
        number, so that two jobs on one machine do not meet.

    Raises:
        BadInput: A launcher's variable is missing, or holds no number.

    Source: documentation of torchrun, "Environment Variables"; of Open MPI, "Environmental
    variables"; of srun, "Output environment variables". Lesson: 09_launch, task 09.1.
    """
    launcher = launcher_of(environ)
    numbers = {"rank": 0, "world_size": 1, "local_rank": 0}
    for name, *words in _WORDS:
        if name == launcher:
            numbers = {
                key: _number(environ, word) for key, word in zip(numbers, words, strict=True)
            }
    address, port = "127.0.0.1", PORT
    if launcher == "srun":
        address = first_host(environ.get("SLURM_JOB_NODELIST", address))
        port = 20000 + int(environ.get("SLURM_JOB_ID", "0")) % 10000
    return Place(
        **numbers,
        address=environ.get("MASTER_ADDR", address),
        port=_number(environ, "MASTER_PORT") if "MASTER_PORT" in environ else port,
    )


def _number(environ, name):
    value = environ.get(name)
    if value is None or not value.isdecimal():
        raise BadInput(
            f"No number in the environment: expected one in {name} (got {value!r}). Start the "
            "script by a launcher, or set the variable."
        )
    return int(value)


def first_host(nodes: str) -> str:
    """
    Return the first machine of a list as Slurm writes it: "gpu[07-09,12],big1" -> "gpu07".

    Args:
        nodes: The value of SLURM_JOB_NODELIST.
    """
    head, _, inside = nodes.partition("[")
    if "," in head or not inside:
        return head.partition(",")[0]
    first, rest = re.fullmatch(r"([^\],-]+)[^\]]*\](.*)", inside).groups()
    return head + first + rest.partition(",")[0]


def adopt(environ: MutableMapping[str, str] | None = None) -> Place:
    """
    Tell torch by its own variables what another launcher has told by others.

    After it, `dist.init_process_group()` works under each of them.

    Args:
        environ: The environment to read and to write. Default: that of this process.

    Returns:
        Place: What was written.

    Lesson: 09_launch.
    """
    environ = os.environ if environ is None else environ
    place = place_of(environ)
    environ.update(place.variables())
    return place


def free_port() -> int:
    """
    Return a port of this machine that nobody uses now, and that nobody is given who asks for any.

    Ranks bind it when they have imported torch, seconds later. On a crowded machine the system may
    give one of its own range to somebody else meanwhile, so it is none of them. Two callers get the
    same one time in ten thousand.

    Source: ip(7), ip_local_port_range; RFC 6335, section 6, for other systems.
    """
    given_from = _first_given_port()
    ours = range(given_from - _NUM_OWN_PORTS, given_from)
    if ours[0] > _LAST_OF_ROOT:
        for port in random.SystemRandom().sample(ours, min(len(ours), _MOST_TRIES)):
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("", port))
                return port
    with socket.socket() as probe:  # the system leaves us none
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _first_given_port():
    try:
        return int(_GIVEN_PORTS.read_text().split()[0])
    except OSError:  # no Linux
        return 49152
