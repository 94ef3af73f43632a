"""
Ranks that mpiexec starts on this machine. When a rank dies, mpiexec ends all of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ipyparallel.cluster import launcher as ipp_launcher

from ddp_lessons.private import ipyparallel_cluster
from ddp_lessons.ranks.kernel.launchers.unsupervised import UnsupervisedRankProcesses
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout
from ddp_lessons.ranks.system.processes import descendants_of

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.rank_processes import StartedCluster

_MOST_LINES = 16
_OTHER_MACHINES = re.compile(r"--?(host|hostfile|machinefile|default-hostfile|H|f|hosts)$")
_KILLED = re.compile(r"process rank (\d+) .* exited on (signal \d+ \([^)]*\))")
_EXITED = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code: +(\d+)")
_SHARE_CORES = "OMPI_MCA_rmaps_base_oversubscribe"
_CURES = {
    "allow-run-as-root": "Open MPI runs for root only if it is told to, in ipcluster_config.py: "
    'c.MPILauncher.mpi_args = ["--allow-run-as-root"].',
    "not enough slots": "Open MPI starts more processes than there are cores only if it is told "
    'to, in ipcluster_config.py: c.MPILauncher.mpi_args = ["--oversubscribe"].',
}
"""
Advice for some of mpiexec's error messages.
"""


class MPIEngineSetLauncher(
    ipp_launcher.MPIEngineSetLauncher  # type: ignore[misc]  # ipyparallel is untyped
):
    """
    ipyparallel's launcher for MPI, with the same configuration, but without MPI in the engines.
    """

    @property
    def program(self) -> list[str]:
        """
        The engine's command. It lacks ipyparallel's option --mpi, which would put mpi4py into the
        learner's namespace.
        """
        command: list[str] = self.engine_cmd
        return command

    def start(self, n: int) -> None:
        """
        Start mpiexec with n engines.

        Raises:
            LauncherError: mpiexec is missing, or would start engines on other machines.
        """
        if shutil.which(self.mpi_cmd[0]) is None:
            raise ipp_launcher.LauncherError(f"no {self.mpi_cmd[0]} on this machine")
        if named := [word for word in self.mpi_args if _OTHER_MACHINES.match(word)]:
            raise ipp_launcher.LauncherError(
                f"{named[0]} in c.MPILauncher.mpi_args: its ranks are on this machine, and "
                'launcher="ssh" or "slurm" has them on others'
            )
        # Let ranks share cores, as everywhere in this course, unless the user has decided on that.
        is_decided = any("oversubscribe" in word for word in self.mpi_args)
        if not is_decided and _SHARE_CORES not in os.environ:
            self.environment[_SHARE_CORES] = "1"
        super().start(n)

    def _wait(self) -> None:
        # ipyparallel's last step here polls a process that has already ended. That raises if
        # `has_ended` asks at the same moment, and a notebook would show it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            super()._wait()

    @property
    def has_ended(self) -> bool:
        """
        Whether mpiexec has ended. `running` changes only if an event loop runs, as in a notebook.
        """
        return ipyparallel_cluster.has_ended(self)

    def get_output(self, remove: bool = False) -> str:
        """
        Return the output of mpiexec and the engines so far, or until the file was removed.
        """
        path = Path(self.output_file)
        if path.is_file():
            self._output = path.read_text(errors="replace")
        if remove:
            path.unlink(missing_ok=True)
        return self._output or ""


class MPIRankProcesses(UnsupervisedRankProcesses):
    """
    The processes of ranks that one mpiexec has started.

    Args:
        started: The StartedCluster.
    """

    _rank_from = "OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK"

    def __init__(self, started: StartedCluster) -> None:
        super().__init__(started)
        self._outlived: list[int] = []  # dead ranks that mpiexec has survived

    def _start(self, n: int, options: Mapping[str, object]) -> MPIEngineSetLauncher:
        mpiexec: MPIEngineSetLauncher = super()._start(n, options)
        self._supervisor.remove_at_end([mpiexec.output_file])
        return mpiexec

    def _log_tail(self, ranks: Collection[int]) -> str:
        # mpiexec names the fault first, and lists other possible causes after it.
        lines = [line for line in self._engine_output().splitlines() if line.strip(" -=")]
        shown = "".join(f"\n  mpi: {line}" for line in lines[:_MOST_LINES])
        return shown + ("\n" if shown else "")

    def _next_step(self) -> str:
        said = self._engine_output()
        for words, cure in _CURES.items():
            if words in said:
                return cure
        if shutil.which("mpiexec") is None:
            return "On Debian: apt-get install openmpi-bin. Or leave launcher out."
        return (
            'Try "mpiexec -n 2 hostname" in a terminal, with c.MPILauncher.mpi_args if it is set.'
        )

    def _ended_early(self, rank: int) -> bool:
        return bool(self._engine_set.has_ended)

    def _find_loss(self) -> str:
        mpiexec = self._engine_set.pid
        time_limit = LoadAwareTimeout(clocks.MPI_END_S, lambda: [mpiexec, *descendants_of(mpiexec)])
        while not self._engine_set.has_ended:
            if time_limit.is_over or self.dead == self._outlived:
                self._outlived = self.dead
                return ""  # mpiexec is set to go on, so the dead rank can be replaced
            time.sleep(clocks.MPI_POLL_S)  # polls: a process that ends does not wake this thread
        return f"mpiexec ends all when one dies{first_death(self._engine_output())}"


def first_death(said: str) -> str:
    """
    Return a clause that says which rank died first; empty if mpiexec's output does not show that.
    """
    if found := _KILLED.search(said):
        return f", and rank {found[1]} ended by {found[2]}"
    if found := _EXITED.search(said):
        return f", and rank {found[1]} exited with code {found[2]}"
    return ""
