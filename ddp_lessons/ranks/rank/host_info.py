"""
A rank's host, its process, and the versions that are installed there.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from ddp_lessons.ranks.messages.rank_start import HostInfo


def host_info(file: str | os.PathLike[str]) -> HostInfo:
    """
    Return where this process runs, and what the kernel compares with its own installation.

    Args:
        file: Path of a file that the kernel has made in a folder that all ranks may share. No copy
            of it exists elsewhere, so a rank that sees it shares the kernel's folder.
    """
    return HostInfo(
        # The name by which Slurm's own commands know a node, else the system's name of the host.
        host=os.environ.get("SLURMD_NODENAME") or platform.node(),
        pid=os.getpid(),
        python=".".join(platform.python_version_tuple()[:2]),
        torch=_version_of("torch"),
        ddp_lessons=_version_of("ddp-lessons"),
        sees_file=os.path.isfile(file),
    )


def _version_of(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def count_by_host(local_rank: int, local_world_size: int) -> None:
    """
    Set LOCAL_RANK and LOCAL_WORLD_SIZE in this process's environment, as torchrun does.

    Args:
        local_rank: Number of this rank among the ranks of its host, from 0, in rank order.
        local_world_size: Number of ranks on the host.
    """
    os.environ.update(LOCAL_RANK=str(local_rank), LOCAL_WORLD_SIZE=str(local_world_size))
