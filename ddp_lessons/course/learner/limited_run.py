"""
The run of another person's command within limits, after which none of its processes is left.

The limits keep learners from using up a machine by mistake. They are no sandbox: the command may
read files and open connections as its user may. Run a stranger's code in a container, or on a
machine that is used for nothing else.
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ddp_lessons.course.learner import command_limits as limiter
from ddp_lessons.jobs.owned import DEADLINE_STATUS, SETTLE_S, owner_command

_MIB = 2**20
_LOOK_EVERY_S = 0.2
_SECRETS = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$|^DDP_LESSONS_BOARD")


@dataclass(frozen=True)
class Limits:
    """
    The time, memory and processes that a submission may use.

    Args:
        time_s: Seconds for one notebook.
        memory_mib: MiB that all its processes may use together.
        processes: Number of processes that it may have at once.
    """

    time_s: float = 240.0
    memory_mib: int = 4096
    processes: int = 64

    def words(self, fault):
        """
        Return the message about a submission that exceeded a limit.

        Args:
            fault: Name of the limit: "time", "memory" or "processes".
        """
        most = {
            "time": f"an end within {self.time_s:g} s",
            "memory": f"{self.memory_mib} MiB at most",
            "processes": f"{self.processes} processes at most",
        }
        return f"It was ended: {most[fault]} is expected (got more). Look for what does not end."


def run(command, *, cwd, env, limits, output, is_over=lambda: False):
    """
    Run a command to its end, within limits, and end every process that it has started.

    Args:
        command: The program and its arguments.
        cwd: The folder to run it in.
        env: Dict of its environment variables; secrets are removed.
        limits: The Limits.
        output: Path of the file that its output is written to.
        is_over: Function without arguments; the command is ended early once it returns True.

    Returns:
        (int, str): Its exit status, and the exceeded limit: "time", "memory", "processes" or "".
    """
    with tempfile.TemporaryDirectory(prefix="ddp-lessons-") as notes:  # not the command's folder
        told = Path(notes) / "limits"
        words = [sys.executable, "-P", limiter.__file__]
        words += [f"--memory-bytes={limits.memory_mib * _MIB}", f"--processes={limits.processes}"]
        words += [f"--told={told}", "--", *command]
        status = _run(words, cwd, env, limits.time_s, output, is_over)
        if status == DEADLINE_STATUS:
            return status, "time"
        return status, told.read_text(encoding="utf-8") if told.is_file() else ""


def _run(words, cwd, env, deadline_s, output, is_over):
    with open(output, "wb") as file:
        owner = subprocess.Popen(
            owner_command(words, deadline_s=deadline_s, settle_s=SETTLE_S),
            cwd=cwd,
            env={name: value for name, value in env.items() if not _SECRETS.search(name)},
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only the caller, which ends the run
        )
        try:
            while owner.poll() is None and not is_over():
                try:
                    owner.wait(_LOOK_EVERY_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            owner.communicate()  # closes the owner's input: it ends all its processes
    return owner.returncode


def last_words(path, most_bytes=8000):
    """
    Return the end of a command's output, which may be too long to be read as a whole.

    Args:
        path: Path of the output file (`output` of `run`).
        most_bytes: Number of bytes to read, at most.
    """
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read().decode(errors="replace")
