"""
Where a rank is at home: its host, its process, and what is installed there.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

RANK_FROM = "DDP_LESSONS_RANK_FROM"
"""
Names the variables that hold a rank's number. Without it a kernel that runs in a job of Slurm's
would hand its own number, 0, to each of its ranks.
"""


def host_info(file):
    """
    Say where this process is, and whether it fits to a kernel elsewhere.

    Args:
        file: A file of the kernel's that nobody copies, in the folder that all ranks may share.

    Returns:
        dict: `host`, `pid`, the versions of `python`, `torch` and `ddp_lessons`, and `sees_file`.
    """
    return {
        # A node of Slurm's goes by the name that Slurm's own commands know.
        "host": os.environ.get("SLURMD_NODENAME") or platform.node(),
        "pid": os.getpid(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": _version_of("torch"),
        "ddp_lessons": _version_of("ddp-lessons"),
        "sees_file": os.path.isfile(file),
    }


def _version_of(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def count_by_host(local_rank, local_world_size):
    """
    Note in this process's environment, as torchrun does, which of its host's ranks this one is.

    Args:
        local_rank: From 0, in rank order.
        local_world_size: How many ranks the host has.
    """
    os.environ.update(LOCAL_RANK=str(local_rank), LOCAL_WORLD_SIZE=str(local_world_size))
