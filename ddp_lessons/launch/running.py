"""
Run a script that was written for torchrun under any launcher, or by torch.multiprocessing.
"""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import multiprocessing

from .environment import Place, adopt, free_port


def main(arguments: list[str]) -> None:
    """
    Run a script with its arguments, as rank of a launcher or as all ranks of a spawn.

    Args:
        arguments: Those of the command line; the file of the script, and what it gets.
    """
    if arguments[:1] == ["--spawn"]:
        num_ranks, *arguments = arguments[1:]
        spawn(int(num_ranks), arguments)
    else:
        adopt()
        run_script(arguments)


def run_script(arguments: Sequence[str]) -> None:
    """
    Run a script in this process, as `python` runs it.

    Args:
        arguments: Its file, and what it gets.
    """
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")


def spawn(num_ranks: int, arguments: Sequence[str]) -> None:
    """
    Run a script on so many new processes of this machine, and wait for them.

    Args:
        num_ranks: How many.
        arguments: As for `run_script`.

    Raises:
        ProcessRaisedException: One of them raised. The others were ended.
        ProcessExitedException: One of them ended otherwise.

    Source: torch.multiprocessing documentation, "Spawning subprocesses". Lesson: 09_launch.
    """
    multiprocessing.spawn(_run_rank, (num_ranks, free_port(), arguments), nprocs=num_ranks)


def _run_rank(rank, num_ranks, port, arguments):
    os.environ.update(Place(rank, num_ranks, rank, "127.0.0.1", port).variables())
    run_script(arguments)
