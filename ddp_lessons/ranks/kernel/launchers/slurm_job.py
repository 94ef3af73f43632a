"""
ipyparallel's launcher for Slurm, with the same configuration, which knows its job's state.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ipyparallel.cluster import launcher as ipp_launcher
from traitlets import CRegExp, List, Unicode

from ddp_lessons.ranks.supervisor.controller_options import EVERY_INTERFACE
from ddp_lessons.ranks.system import clocks

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.launchers.supervised import RanksCluster

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
_RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
_UNKNOWN_JOB = "Invalid job id"
_TASKS_ENDED = re.compile(r"^srun: error: \S+: tasks? ([\d,-]+): .*", re.MULTILINE)
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
_FOREIGN = ("SLURM", "PMI", "OMPI_", "PRTE_")
_FOREIGN_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


@contextlib.contextmanager
def _put_off_stop() -> Iterator[None]:
    """
    Delay Stop until sbatch has printed the job's number, without which the job cannot be cancelled.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stops: list[tuple[Any, ...]] = []
    before = signal.signal(signal.SIGINT, lambda *stop: stops.append(stop))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if stops and callable(before):
            before(*stops[-1])


@dataclass(frozen=True)
class SlurmJob:
    """
    A job, as Slurm describes it.

    Args:
        number: The job's id, a string.
        state: Slurm's word for its state, such as "PENDING"; empty if Slurm does not know the job.
        reason: Why the job waits, or how it ended, in Slurm's words.
    """

    number: str
    state: str
    reason: str = ""

    @property
    def waits(self) -> bool:
        """
        Whether the job has not started yet.
        """
        return self.state in _WAITING

    @property
    def runs(self) -> bool:
        """
        Whether the job's ranks may live, and new ranks can be started in it.
        """
        return self.state in _RUNNING

    @property
    def is_over(self) -> bool:
        """
        Whether nothing of the job is left.
        """
        return not (self.waits or self.runs or self.state == "COMPLETING")

    def __str__(self) -> str:
        reason = "" if self.reason in ("", "None") else f" ({self.reason})"
        return f"job {self.number} is {self.state or 'over'}{reason}"


class SlurmEngineSetLauncher(
    ipp_launcher.SlurmEngineSetLauncher  # type: ignore[misc]  # ipyparallel is untyped
):
    """
    ipyparallel's launcher for Slurm. Its errors have Slurm's own messages, and `stop` waits until
    the job has ended.
    """

    # ipyparallel's expression takes --no-requeue and --nodes, too, for a number of tasks.
    job_array_regexp = CRegExp(r"#SBATCH\s+(?:--ntasks|-n)[=\s\d]")
    queue_command = List(["squeue"], config=True, help="The Slurm command to look at the queue.")
    step_command = List(["srun"], config=True, help="The Slurm command to start one more engine.")
    default_template = Unicode(
        """#!/bin/sh
#SBATCH --export=ALL
#SBATCH --job-name=ipengine-{cluster_id}
#SBATCH --no-requeue
srun {program_and_args}
# Engines that have replaced others run in steps of their own: the job ends with the last of them.
sleep 10
while squeue --noheader --steps --jobs=$SLURM_JOB_ID --format=%i | grep -q "[.][0-9]"; do
    sleep 5
done
"""
    )

    def start(self, n: int) -> str:
        """
        Submit the job. Its script is removed at once, because Slurm has a copy.
        """
        with tempfile.TemporaryDirectory() as folder, _put_off_stop():
            self.batch_file = os.path.join(folder, self.batch_file_name)
            job: str = super().start(n)
            return job

    def start_step(
        self, environment: Mapping[str, str], host: str, log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """
        Start one more engine in the running job.

        Args:
            environment: The engine's variables, in addition to those of the whole set.
            host: Name of the node.
            log: Open file for the output of the engine and of srun.

        Returns:
            subprocess.Popen: The srun, which ends with the engine.
        """
        options = [
            f"--jobid={self.job_id}", f"--nodelist={host}", "--nodes=1", "--ntasks=1",
            "--overlap",  # the cores of the dead rank still count as taken
            "--cpu-bind=none", "--export=ALL",
        ]  # fmt: skip
        return subprocess.Popen(
            [*self.step_command, *options, *self.program, *self.program_args],
            env=self._own_environment({**os.environ, **self.get_env(), **environment}, environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in a terminal is for the kernel alone
        )

    def ask_queue(self) -> SlurmJob | None:
        """
        Return the SlurmJob, or None if Slurm does not answer now.
        """
        command = [*self.queue_command, "--noheader", "--states=all", f"--jobs={self.job_id}"]
        try:
            said = self._run_command([*command, "--format=%T|%r"]).strip()
        except ipp_launcher.LauncherError as error:
            return SlurmJob(self.job_id, "") if _UNKNOWN_JOB in str(error) else None
        state, _, reason = said.partition("|")
        return SlurmJob(self.job_id, state, reason)

    def get_output(self, remove: bool = False) -> str:
        """
        Return the output of the engines so far, or until the file was removed.
        """
        path = Path(self.output_file)
        if path.is_file():
            self._output = path.read_text(errors="replace")
        if remove:
            path.unlink(missing_ok=True)
        return self._output or ""

    def ended_tasks(self) -> dict[int, str]:
        """
        Return {number of a failed engine: srun's line, which says how it ended}.
        """
        ended: dict[int, str] = {}
        for found in _TASKS_ENDED.finditer(self.get_output()):
            for first, _, last in (part.partition("-") for part in found[1].split(",")):
                ended |= dict.fromkeys(range(int(first), int(last or first) + 1), found[0])
        return ended

    def cancel(self) -> None:
        """
        Have Slurm end the job, or take it out of the queue.
        """
        self._run_command([*self.delete_command, self.job_id])

    async def stop(self) -> None:
        """
        End the job, and wait until Slurm reports that nothing of it is left.
        """
        try:
            self.cancel()
        except ipp_launcher.LauncherError:
            job = self.ask_queue()
            if job is None or not job.is_over:  # the job did not end by itself before
                raise
        deadline = time.monotonic() + clocks.SLURM_GONE_S
        while not self._is_gone() and time.monotonic() < deadline:
            await asyncio.sleep(clocks.SLURM_POLL_S)
        self.notify_stop({"job_id": self.job_id})

    def _is_gone(self) -> bool:
        job = self.ask_queue()
        return job is not None and job.is_over

    def _insert_options_in_script(self) -> None:
        # ipyparallel has a setting for more options, but does not put them into the script.
        super()._insert_options_in_script()
        if self.options:
            template: str = self.batch_template  # type: ignore[has-type]  # a trait
            first, rest = template.split("\n", 1)
            self.batch_template = "\n".join([first, "#SBATCH {options}", rest])

    def _run_command(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, **kwargs: object
    ) -> str:
        """
        Run one of Slurm's commands and return what it prints.

        Raises:
            LauncherError: The command is missing, failed, or took too long. The message has its
                output.
        """
        try:
            done = subprocess.run(
                command,
                env=self._own_environment(env or os.environ, self.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=clocks.SLURM_COMMAND_S,
            )
        except FileNotFoundError:
            raise ipp_launcher.LauncherError(f"no {command[0]} on this machine") from None
        except subprocess.TimeoutExpired:
            raise ipp_launcher.LauncherError(
                f"no answer from {command[0]} in {clocks.SLURM_COMMAND_S:.0f} s"
            ) from None
        if done.returncode != 0:
            said = "; ".join((done.stderr or done.stdout).strip().splitlines())
            raise ipp_launcher.LauncherError(f"these words of {command[0]}: {said}")
        return done.stdout

    def _own_environment(self, environ: Mapping[str, str], ours: Container[str]) -> dict[str, str]:
        """
        Return variables without those of the Slurm job in which this kernel itself may run.
        """
        return {
            name: value
            for name, value in environ.items()
            if name in ours
            or name in _KEPT
            or not (name.startswith(_FOREIGN) or name in _FOREIGN_NAMES)
        }


def listen_address(cluster: "RanksCluster") -> str:
    """
    Return the address of every interface: Slurm chooses the hosts only when the job starts.
    """
    return EVERY_INTERFACE
