"""
The registry of launchers: which class of RankProcesses belongs to which launcher.
"""

from ddp_lessons.ranks.kernel.bootstrap import OWN
from ddp_lessons.ranks.kernel.launchers.launched_processes import LaunchedRankProcesses
from ddp_lessons.ranks.kernel.launchers.mpi import MPIRankProcesses
from ddp_lessons.ranks.kernel.launchers.slurm import SlurmRankProcesses
from ddp_lessons.ranks.kernel.launchers.ssh import SSHRankProcesses
from ddp_lessons.ranks.kernel.rank_processes import SupervisedRankProcesses

_KINDS = {"mpi": MPIRankProcesses, "slurm": SlurmRankProcesses, "ssh": SSHRankProcesses}


def rank_processes_of(launcher, supervisor, cluster, client, placement):
    """
    Return the RankProcesses for a launcher.

    Args:
        launcher: Name of the launcher (see `start_ranks`).
        supervisor, cluster, client, placement: The arguments of `RankProcesses`.
    """
    if launcher in OWN:
        return SupervisedRankProcesses(supervisor, cluster, client, placement)
    kind = _KINDS.get(launcher, LaunchedRankProcesses)
    return kind(supervisor, cluster, client, placement, launcher)
