"""
What one types to start the same script by each launcher.

| who        | what it is                                                             |
| ---------- | ---------------------------------------------------------------------- |
| `torchrun` | a launcher: starts ranks on one machine, watches them, restarts them   |
| `spawn`    | a launcher inside of Python                                            |
| `mpiexec`  | a launcher: starts processes on machines that it is told               |
| `srun`     | a launcher of Slurm, which is a scheduler: it decides where and when   |

None of them sends a gradient: that is what libraries do, such as torch.distributed.
"""

import shutil
import sys
from collections.abc import Mapping

from ..errors import BadInput
from .environment import free_port

LAUNCHERS = ("torchrun", "launch", "spawn", "mpiexec", "srun")

_PYTHON = (sys.executable, "-m")


def is_here(launcher: str, environ: Mapping[str, str]) -> bool:
    """
    Say whether this machine can start ranks by a launcher.

    Args:
        launcher: One of LAUNCHERS.
        environ: The environment to look in, such as os.environ. Slurm must be told of in
            SLURM_CONF, as `scripts/slurm.sh start` does, or have nodes without it.
    """
    needed = launcher if launcher in ("mpiexec", "srun") else sys.executable
    if shutil.which(needed, path=environ.get("PATH")) is None:
        return False
    return launcher != "srun" or "SLURM_CONF" in environ


def command_of(
    launcher: str, num_ranks: int, script: str, *, adopts: bool = True
) -> tuple[list[str], dict[str, str]]:
    """
    Return what starts a script of torch's on so many ranks of this machine.

    Args:
        launcher: One of LAUNCHERS. "launch" is `torch.distributed.launch`, torchrun's old name.
        num_ranks: How many.
        script: Its file.
        adopts: Whether torch is told its place in its own words, where the launcher does not.

    Returns:
        tuple: The command as a list of words, and the environment variables that it needs.

    Raises:
        BadInput: There is no such launcher.

    Lesson: 09_launch.
    """
    if launcher not in LAUNCHERS:
        raise BadInput(
            f"Unknown launcher: expected one of {', '.join(LAUNCHERS)} (got {launcher!r}). "
            "Name one of them."
        )
    run = [*_PYTHON, "ddp_lessons.launch"] if adopts else [sys.executable]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if adopts else {}
    one = {"OMP_NUM_THREADS": "1"}  # as torchrun has it
    # Of rank 0 alone: lines of several ranks would run into each other.
    ranks = ["--standalone", f"--nproc-per-node={num_ranks}", "--local-ranks-filter=0", script]
    match launcher:
        case "torchrun":
            return [*_PYTHON, "torch.distributed.run", *ranks], one
        case "launch":
            return [*_PYTHON, "torch.distributed.launch", *ranks], one
        case "spawn":
            return [*_PYTHON, "ddp_lessons.launch", "--spawn", str(num_ranks), script], one
        case "mpiexec":
            # Open MPI asks for both of root, and counts cores before it starts more than there are.
            root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            words = ["mpiexec", "--oversubscribe", "-n", str(num_ranks)]
            return [*words, *run, script], one | root | meet
        case _:
            return ["srun", "-n", str(num_ranks), *run, script], one | meet
