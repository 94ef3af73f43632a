"""
What lesson 09 does with its script again and again: start it, and compare what came out.

Lesson: 09_launch.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from ..jobs import Job, start_job
from .commands import command_of
from .environment import place_of

NUM_RANKS = 2


def start_by(
    launcher: str,
    folder: Path | str,
    script: str = "train.py",
    name: str | None = None,
    **variables: str,
) -> Job:
    """
    Start a script of a folder on two ranks of the CPU, and return while it runs.

    Args:
        launcher: One of LAUNCHERS.
        folder: The folder of the script. What the script writes goes into a new folder in it, which
            the script is told by OUT.
        script: Its name.
        name: That of the new folder. Default: the launcher's.
        variables: Environment variables that it gets.

    Returns:
        Job: As `start_job` returns it.
    """
    command, needed = command_of(launcher, NUM_RANKS, script)
    return start_command(command, folder, name or launcher, **needed, **variables)


def start_command(
    command: str | Sequence[str], folder: Path | str, name: str, **variables: str
) -> Job:
    """
    Start any command; the rest is as for `start_by`.
    """
    out = Path(folder, name)
    shutil.rmtree(out, ignore_errors=True)  # of the cell's last run
    out.mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OUT": str(out), "PATH": path}
    return start_job(command, folder=folder, env=env | variables)


def num_different(folder: Path | str, name: str) -> int:
    """
    Count the losses of a job that are not, bit for bit, those of the notebook's ranks.

    Args:
        folder: Where the notebook's ranks have written theirs.
        name: The folder in it where the job has.
    """
    pairs: list = []
    for rank in range(NUM_RANKS):
        both = [Path(at, f"losses-{rank}.json") for at in (folder, Path(folder, name))]
        pairs += zip(*(json.loads(path.read_text()) for path in both), strict=True)
    return sum(ours != theirs for ours, theirs in pairs)


def wait_for_lines(job: Job, num: int, within_s: float = 60.0) -> None:
    """
    Wait until a job has printed so many lines, or has ended.

    Args:
        job: The Job.
        num: How many lines.
        within_s: The longest that it is waited for.
    """
    until = time.monotonic() + within_s
    while job.is_running and job.stdout.count("\n") < num and time.monotonic() < until:
        time.sleep(0.05)


def known_addresses(rank: int) -> int:
    """
    Count the addresses of a rank of Gloo that lie in the store before it has joined.

    Args:
        rank: This rank, from 1. Rank 0 may hold the store itself, and does not look.

    Returns:
        int: 0, unless a process of an earlier life has left its own there.
    """
    if rank == 0:
        return 0
    place = place_of(os.environ)
    store = dist.TCPStore(place.address, place.port, is_master=False)
    return sum(key.endswith(f"//0/{rank}") for key in store.list_keys())
