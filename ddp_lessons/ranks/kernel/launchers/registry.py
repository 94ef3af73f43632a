"""
Which Engines belong to which launcher.
"""

from ddp_lessons.ranks.kernel.bootstrap import OWN
from ddp_lessons.ranks.kernel.launchers.launched_processes import LaunchedEngines
from ddp_lessons.ranks.kernel.launchers.mpi import MPIEngines
from ddp_lessons.ranks.kernel.launchers.slurm import SlurmEngines
from ddp_lessons.ranks.kernel.launchers.ssh import SSHEngines
from ddp_lessons.ranks.kernel.rank_processes import WardenEngines

_KINDS = {"mpi": MPIEngines, "slurm": SlurmEngines, "ssh": SSHEngines}


def engines_of(launcher, keeper, cluster, client, placement):
    """
    Return the Engines for a launcher, as `start_ranks` takes it.

    Args:
        launcher: Its name.
        keeper, cluster, client, placement: As `Engines`.
    """
    if launcher in OWN:
        return WardenEngines(keeper, cluster, client, placement)
    kind = _KINDS.get(launcher, LaunchedEngines)
    return kind(keeper, cluster, client, placement, launcher)
