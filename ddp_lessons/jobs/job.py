"""
A job: a command that runs beside the notebook, what it prints, and its processes by rank.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from ddp_lessons.errors import BadInput, JobLate
from ddp_lessons.jobs.owned import owner_command

NO_LIMIT_S = 24 * 3600.0
"""
Seconds after which a job is ended that nobody has ended.
"""
_SETTLE_S = 0.5  # for what a job leaves behind and that is about to end by itself
_LAST_LINES = 15
_LOOK_EVERY_S = 0.02
_COLOURS = ("CLICOLOR_FORCE", "FORCE_COLOR")
_OURS = {  # by this interpreter, also where its folder is on no PATH, as in a kernel of Jupyter's
    "ddp-lessons": [sys.executable, "-m", "ddp_lessons.course.cli"],
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}


def start_job(
    command: str | Iterable[object],
    *,
    folder: Path | str | None = None,
    env: Mapping[str, object] | None = None,
    has_scratch: bool = False,
) -> "Job":
    """
    Start a command, and return while it runs.

    Args:
        command: A line as one would type it in a terminal, without a shell's signs; or a list.
            "python", "torchrun" and "ddp-lessons" are those of this kernel.
        folder: The folder that it runs in. Default: the current one.
        env: Environment variables that it gets beside this kernel's; None for one takes it away.
        has_scratch: Give it a folder of its own for temporary files (TMPDIR), which is removed with
            it, however this kernel ends.

    Returns:
        Job: It ends with the kernel at the latest.

    Raises:
        BadInput: There is no such command.
    """
    return Job(command, folder=folder, env=env, has_scratch=has_scratch)


def run_job(
    command: str | Iterable[object],
    *,
    timeout_s: float = 60.0,
    folder: Path | str | None = None,
    env: Mapping[str, object] | None = None,
) -> "Job":
    """
    Run a command to its end. Stop ends it, too.

    Args:
        command: As for `start_job`.
        timeout_s: Seconds after which it is ended.
        folder: As for `start_job`.
        env: As for `start_job`.

    Returns:
        Job: It has ended.

    Raises:
        BadInput: There is no such command.
        JobLate: It did not end in time. Its processes were ended.
    """
    with start_job(command, folder=folder, env=env) as job:
        job.wait(timeout_s)
        late = job.returncode is None
    if late:
        said = (job.stdout + job.stderr).splitlines()[-_LAST_LINES:]
        raise JobLate(
            f"Job still running: expected an end within {timeout_s:g} s (got none of "
            f"{job.line!r}). Its processes were ended; read its last lines."
            + "".join(f"\n  {line}" for line in said)
        )
    return job


class Job:
    """
    Hold a command that runs beside the notebook. Use it in a `with`, which ends it.

    Attributes:
        line: The command as one would type it.
    """

    def __init__(
        self,
        command: str | Iterable[object],
        *,
        folder: Path | str | None = None,
        env: Mapping[str, object] | None = None,
        has_scratch: bool = False,
    ) -> None:
        words = shlex.split(command) if isinstance(command, str) else [str(one) for one in command]
        self.line = shlex.join(words)
        known = _OURS.get(words[0]) if words else None
        if known is None and not words:
            raise BadInput("No command: expected words as in a terminal (got none). Give some.")
        folder = Path(folder or Path.cwd())
        environ: dict[str, Any] = {**os.environ, **(env or {})}
        environ = {name: str(value) for name, value in environ.items() if value is not None}
        for name in _COLOURS:  # a kernel asks for them; what is printed here goes into a file
            environ.pop(name, None)
        # A kernel of Jupyter's need not have the folder of its own interpreter on its path.
        environ["PATH"] = (
            f"{environ.get('PATH', os.defpath)}{os.pathsep}{Path(sys.executable).parent}"
        )
        words = [*(known or words[:1]), *words[1:]]
        if known is None and not _is_there(words[0], folder, environ):
            raise BadInput(
                f"No such command: expected one that this machine has (got {words[0]!r}). "
                "Install it, or correct its name."
            )
        # Files without a name: of a kernel that is killed, they are no trace.
        self._outputs = {name: tempfile.TemporaryFile() for name in ("stdout", "stderr")}  # noqa: SIM115
        for file in self._outputs.values():
            weakref.finalize(self, file.close)
        self._owner = subprocess.Popen(
            owner_command(
                words, deadline_s=NO_LIMIT_S, settle_s=_SETTLE_S, has_scratch=has_scratch
            ),
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=self._outputs["stdout"],
            stderr=self._outputs["stderr"],
            start_new_session=True,  # Stop is the cell's, which decides
        )
        self._was_cut_short = False
        # Closes its input, which ends it and all that it owns, and waits.
        self._finalizer = weakref.finalize(self, self._owner.communicate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    def __repr__(self) -> str:
        state = f"exit code {self.returncode}" if self.returncode is not None else "ended by us"
        state = "running" if self.is_running else state
        return f"<job {self.line}: {state}>"

    @property
    def returncode(self) -> int | None:
        """
        Its exit code, or minus the signal that ended it. None while it runs, and if we ended it.
        """
        return None if self._was_cut_short else self._owner.poll()

    @property
    def is_running(self) -> bool:
        """
        Whether it has not ended yet.
        """
        return self._owner.poll() is None

    @property
    def stdout(self) -> str:
        """
        What it has printed so far.
        """
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        """
        What it has printed to the error stream so far.
        """
        return self._text("stderr")

    def wait(self, timeout_s: float) -> int | None:
        """
        Wait for its end, so many seconds at most.

        Returns:
            int or None: Its exit code, or None if it still runs.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._owner.wait(timeout_s)
        return self.returncode

    def wait_for(self, text: str, timeout_s: float, times: int = 1) -> None:
        """
        Wait until it has printed a text so many times, so many seconds at most.

        Raises:
            JobLate: It has ended without, or the time is over. It goes on if it has not ended.
        """
        give_up_at = time.monotonic() + timeout_s
        while True:
            has_ended = not self.is_running  # asked first: its last words count
            num_printed = self.stdout.count(text)
            if num_printed >= times:
                return
            if has_ended or time.monotonic() >= give_up_at:
                said = (self.stdout + self.stderr).splitlines()[-_LAST_LINES:]
                raise JobLate(
                    f"Job has not said it: expected {text!r} {times} times within {timeout_s:g} s "
                    f"(got it {num_printed} times of {self.line!r}). Read its last lines."
                    + "".join(f"\n  {line}" for line in said)
                )
            time.sleep(_LOOK_EVERY_S)

    def processes(self) -> list[psutil.Process]:
        """
        Return all processes that it has started and that run, as psutil has them.
        """
        if not self.is_running:
            return []
        found = []
        for process in psutil.Process(self._owner.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def workers(self) -> dict[int, int]:
        """
        Return {rank: process id} of its workers: the processes that a launcher has given a rank.
        """
        ranks = {}
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                ranks[process.pid] = (process.ppid(), process.environ().get("RANK"))
        return {
            int(rank): pid
            for pid, (parent, rank) in sorted(ranks.items(), key=lambda item: item[1][1] or "")
            if rank is not None and ranks.get(parent, (0, None))[1] is None
        }

    def end(self) -> None:
        """
        End it and all its processes, and wait until they are gone. At once if it has ended.
        """
        self._was_cut_short = self._was_cut_short or self.is_running
        self._finalizer()

    def _text(self, name):
        handle = self._outputs[name].fileno()
        # At a place of its own: the job writes where the file's own place is.
        return os.pread(handle, os.fstat(handle).st_size, 0).decode(errors="replace")


def _is_there(word, folder, environ):
    file = str(folder / word) if "/" in word else word
    return shutil.which(file, path=environ.get("PATH")) is not None
