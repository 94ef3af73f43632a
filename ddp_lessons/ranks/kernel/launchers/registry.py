"""
The registry of launchers. A new launcher is a module beside this one, and an entry in LAUNCHERS.

Entries name classes by their path, so that nothing here imports ipyparallel, which takes long.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipyparallel import Client

    from ddp_lessons.ranks.kernel.launchers.supervised import RanksCluster
    from ddp_lessons.ranks.kernel.rank_processes import RankProcesses
    from ddp_lessons.ranks.kernel.supervisor_client import SupervisorClient
    from ddp_lessons.ranks.system.placement import Placement

_HERE = "ddp_lessons.ranks.kernel.launchers"


@dataclass(frozen=True)
class Launcher:
    """
    One launcher of `start_ranks`.

    Args:
        name: Its name, as `start_ranks` takes it.
        summary: Words for what it does, as the docstring of `start_ranks` has them.
        engines: The ipyparallel launcher of its ranks: a name that ipyparallel knows, or a path
            "module:Class".
        rank_processes: Path "module:Class" of its RankProcesses.
        is_ours: Whether the supervisor is the parent of its ranks.
        is_elsewhere: Whether its ranks may be on other machines.
        listen_address: Path "module:function" of the function that returns the address on which
            the controller listens, from the RanksCluster. "": the loopback address.
    """

    name: str
    summary: str
    engines: str
    rank_processes: str
    is_ours: bool = False
    is_elsewhere: bool = False
    listen_address: str = ""


def _ours(name: str, summary: str) -> Launcher:
    return Launcher(
        name,
        summary,
        engines="ddp-lessons",
        rank_processes="ddp_lessons.ranks.kernel.rank_processes:SupervisedRankProcesses",
        is_ours=True,
    )


_ALL = (
    _ours("auto", "fork where that is safe, else spawn"),
    _ours("fork", "import torch once, then fork"),
    _ours("spawn", "a fresh interpreter each"),
    Launcher(
        "local",
        "ipyparallel's own processes on this machine",
        engines="local",
        rank_processes=f"{_HERE}.launched_processes:LaunchedRankProcesses",
    ),
    Launcher(
        "slurm",
        "a job of Slurm's",
        engines=f"{_HERE}.slurm_job:SlurmEngineSetLauncher",
        rank_processes=f"{_HERE}.slurm:SlurmRankProcesses",
        is_elsewhere=True,
        listen_address=f"{_HERE}.slurm_job:listen_address",
    ),
    Launcher(
        "ssh",
        "one login on each host",
        engines=f"{_HERE}.ssh_launchers:SSHEngineSetLauncher",
        rank_processes=f"{_HERE}.ssh:SSHRankProcesses",
        is_elsewhere=True,
        listen_address=f"{_HERE}.ssh_launchers:listen_address",
    ),
    Launcher(
        "mpi",
        "mpiexec on this machine",
        engines=f"{_HERE}.mpi:MPIEngineSetLauncher",
        rank_processes=f"{_HERE}.mpi:MPIRankProcesses",
    ),
)
LAUNCHERS: dict[str, Launcher] = {launcher.name: launcher for launcher in _ALL}
"""
Every launcher by its name, in the order in which messages list them.
"""


def load(path: str) -> Any:
    """
    Return the class or function at a path "module:name"; a text without a colon as it is.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name) if name else path


def rank_processes_of(
    launcher: str,
    supervisor: SupervisorClient,
    cluster: RanksCluster,
    client: Client,
    placement: Placement,
) -> RankProcesses:
    """
    Return the RankProcesses of a launcher.

    Args:
        launcher: Its name.
        supervisor, cluster, client, placement: The arguments of `RankProcesses`.
    """
    entry = LAUNCHERS[launcher]
    processes = load(entry.rank_processes)
    if entry.is_ours:
        return processes(supervisor, cluster, client, placement)
    return processes(supervisor, cluster, client, placement, launcher)
