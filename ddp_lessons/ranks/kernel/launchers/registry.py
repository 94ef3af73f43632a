"""
The registry of launchers. A new launcher is a module beside this one, and an entry in _ENTRIES.

Entries name classes by their path, so that nothing here imports ipyparallel, which takes long.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.rank_processes import RankProcesses, StartedCluster

_HERE = "ddp_lessons.ranks.kernel.launchers"


@dataclass(frozen=True)
class LauncherEntry:
    """
    One launcher of `start_ranks`.

    Args:
        name: Its name, as `start_ranks` takes it.
        engine_launcher: ipyparallel's launcher of its ranks: a name that ipyparallel knows, or the
            path "module:Class" of a launcher class.
        rank_processes: Path "module:Class" of its RankProcesses.
        is_supervised: Whether the supervisor is the parent of its ranks.
        may_fork: Whether a process that has imported torch forks its ranks, where that is safe.
        must_fork: Whether a start is refused where forking is not safe.
        is_elsewhere: Whether its ranks may be on other machines.
        listen_address: Path "module:function" of the function that returns the address on which
            the controller listens, from the RanksCluster. "": the loopback address.
    """

    name: str
    engine_launcher: str
    rank_processes: str
    is_supervised: bool = False
    may_fork: bool = False
    must_fork: bool = False
    is_elsewhere: bool = False
    listen_address: str = ""


def _supervised(name: str, *, may_fork: bool, must_fork: bool = False) -> LauncherEntry:
    return LauncherEntry(
        name,
        engine_launcher="ddp-lessons",
        rank_processes="ddp_lessons.ranks.kernel.rank_processes:SupervisedRankProcesses",
        is_supervised=True,
        may_fork=may_fork,
        must_fork=must_fork,
    )


_ENTRIES = (
    _supervised("auto", may_fork=True),
    _supervised("fork", may_fork=True, must_fork=True),
    _supervised("spawn", may_fork=False),
    LauncherEntry(
        "local",
        engine_launcher="local",
        rank_processes=f"{_HERE}.unsupervised:UnsupervisedRankProcesses",
    ),
    LauncherEntry(
        "slurm",
        engine_launcher=f"{_HERE}.slurm_job:SlurmEngineSetLauncher",
        rank_processes=f"{_HERE}.slurm:SlurmRankProcesses",
        is_elsewhere=True,
        listen_address=f"{_HERE}.slurm_job:listen_address",
    ),
    LauncherEntry(
        "ssh",
        engine_launcher=f"{_HERE}.ssh_launchers:SSHEngineSetLauncher",
        rank_processes=f"{_HERE}.ssh:SSHRankProcesses",
        is_elsewhere=True,
        listen_address=f"{_HERE}.ssh_launchers:listen_address",
    ),
    LauncherEntry(
        "mpi",
        engine_launcher=f"{_HERE}.mpi:MPIEngineSetLauncher",
        rank_processes=f"{_HERE}.mpi:MPIRankProcesses",
    ),
)
RANK_LAUNCHERS: dict[str, LauncherEntry] = {launcher.name: launcher for launcher in _ENTRIES}
"""
Every launcher by its name, in the order in which messages list them.
"""


def load(path: str) -> Any:
    """
    Return the class or function at a path "module:name". A text without a colon is returned
    unchanged.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name) if name else path


def rank_processes_of(started: StartedCluster) -> RankProcesses:
    """
    Return the RankProcesses of the launcher that a StartedCluster names.
    """
    made: RankProcesses = load(RANK_LAUNCHERS[started.launcher].rank_processes)(started)
    return made
