"""
A Slurm of two nodes for tests: the script `scripts/slurm.sh`, its queue, and its traces on this
machine.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest
from paths import ROOT
from waiting import wait_until

SCRIPT = ROOT / "scripts" / "slurm.sh"
NEEDED = ("munged", "slurmctld", "slurmd")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
GONE_S = 30.0
_numbers = itertools.count()


def slurm(*arguments, folder, path=PATH):
    """
    Run the script on the Slurm in a folder.
    """
    environ = {**os.environ, "DDP_LESSONS_SLURM": str(folder), "PATH": path}
    environ.pop("SLURM_CONF", None)
    return subprocess.run(
        [shutil.which("bash"), str(SCRIPT), *arguments],
        capture_output=True, text=True, check=False, env=environ, timeout=90,
    )  # fmt: skip


def processes_of(folder):
    """
    Return the names of processes that were started for a folder.
    """
    return sorted(process.name() for process, _ in _of(folder))


def engines_on(folder, node):
    """
    Return the processes of ranks on a node.
    """
    return [
        process
        for process, words in _of(folder)
        if words[1:4] == ["-P", "-m", "ddp_lessons.ranks.rank.rank_engine"]  # not srun
        and f"SLURMD_NODENAME={node}" in words
    ]


def _of(folder):
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environ = [f"{name}={value}" for name, value in process.environ().items()]
            words = [*process.cmdline(), *environ]
            if process.pid != os.getpid() and any(str(folder) in word for word in words):
                found.append((process, words))
    return found


def queue(*options):
    """
    Return a line for each job in the queue: the job's number, state and name.
    """
    done = subprocess.run(
        ["squeue", "--noheader", "--format=%i %T %j", *options],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.splitlines()


@contextlib.contextmanager
def running_slurm():
    """
    Start a Slurm, point this process at it, and give its folder. Assert in the end that nothing is
    left of it.
    """
    # The folder's name is short because a socket's path may have only about 100 characters.
    folder = Path("/tmp") / f"ddp-lessons-slurm-{os.getpid()}-{next(_numbers)}"
    with pytest.MonkeyPatch.context() as patch:
        try:
            done = slurm("start", folder=folder)
            assert (done.returncode, done.stderr) == (0, "")
            patch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
            yield folder
            wait_until(lambda: queue() == [], GONE_S, "the queue to be empty")
        finally:
            stopped = slurm("stop", folder=folder)
    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (0, "", "")
    assert processes_of(folder) == []


needs_slurm = pytest.mark.skipif(
    any(shutil.which(name, path=PATH) is None for name in NEEDED), reason="no Slurm on this machine"
)
