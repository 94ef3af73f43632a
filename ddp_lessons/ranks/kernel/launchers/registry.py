"""
Registry of launchers: which RankProcesses belong to which.
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
    Return the RankProcesses for a launcher, as `start_ranks` takes it.

    Args:
        launcher: Its name.
        supervisor, cluster, client, placement: As `RankProcesses`.
    """
    if launcher in OWN:
        return SupervisedRankProcesses(supervisor, cluster, client, placement)
    kind = _KINDS.get(launcher, LaunchedRankProcesses)
    return kind(supervisor, cluster, client, placement, launcher)
