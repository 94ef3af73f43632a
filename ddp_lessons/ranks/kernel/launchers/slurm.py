"""
Ranks in a Slurm job. A dead rank is replaced in the job, and the end of the job ends all ranks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ipyparallel.cluster.launcher import LauncherError

from ddp_lessons.errors import RanksGone
from ddp_lessons.ranks.kernel.launchers.unsupervised import UnsupervisedRankProcesses
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.runtime_folder import open_private

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.launchers.slurm_job import SlurmEngineSetLauncher, SlurmJob
    from ddp_lessons.ranks.kernel.rank_processes import StartedCluster


class SlurmRankProcesses(UnsupervisedRankProcesses):
    """
    The processes of ranks in one Slurm job.

    Args:
        started: The StartedCluster.
    """

    _rank_from = "SLURM_PROCID"

    def __init__(self, started: StartedCluster) -> None:
        super().__init__(started)
        # rank -> srun process of its replacement
        self._steps: dict[int, subprocess.Popen[bytes]] = {}
        # srun processes of replacements that were replaced
        self._old_steps: list[subprocess.Popen[bytes]] = []
        self._job: SlurmJob | None = None
        self._began_at = self._looked_at = time.monotonic()
        self._told = False
        # rank that ended before it registered -> srun's line on that
        self._early: dict[int, str] = {}

    def _options(self) -> dict[str, dict[str, str]]:
        options = super()._options()
        # A rank that dies must not end the others, whatever this cluster's default is.
        options["environment"].update(SLURM_KILL_BAD_EXIT="0", SLURM_WAIT="0")
        return options

    def _start(self, n: int, options: Mapping[str, object]) -> SlurmEngineSetLauncher:
        self._began_at = self._looked_at = time.monotonic()
        job: SlurmEngineSetLauncher = super()._start(n, options)
        self._supervisor.run_at_end([[*job.delete_command, job.job_id]])
        self._supervisor.remove_at_end([job.output_file])
        return job

    def _next_step(self) -> str:
        if shutil.which("sbatch") is None:
            return (
                "It takes a machine that hands jobs in, such as a login node. Leave launcher out "
                "for ranks on this machine."
            )
        if self._job is not None and self._job.waits:
            return (
                "It was taken out of the queue. Let it wait for longer with timeout_s=600, or ask "
                "for less: c.SlurmLauncher in ipcluster_config.py has queue, account, qos, "
                "timelimit and options."
            )
        return (
            'Try "srun --nodes=1 hostname" in a terminal; c.SlurmLauncher in ipcluster_config.py '
            "has queue, account, qos, timelimit and options."
        )

    def stop(self) -> None:
        """
        End the job, and with it all ranks.
        """
        super().stop()
        with contextlib.suppress(RanksGone):  # the supervisor has ended, and has run the command
            self._supervisor.run_at_end([])
        for step in (*self._steps.values(), *self._old_steps):
            _end(step)

    # ---- the queue ----

    def _ended_early(self, rank: int) -> bool:
        if rank in self._steps:
            return self._steps[rank].poll() is not None
        now = time.monotonic()
        waited_s = now - self._began_at
        is_soon = waited_s < clocks.SLURM_SELDOM_AFTER_S
        every_s = clocks.SLURM_LOOK_EVERY_S if is_soon else clocks.SLURM_LOOK_SELDOM_S
        if now - self._looked_at > every_s:
            self._looked_at = now
            self._job = self._engine_set.ask_queue() or self._job
            self._early = self._engine_set.ended_tasks()  # the job runs on for the others
        if rank in self._early:
            return True
        if self._job is None:
            return False
        if self._job.waits and waited_s > clocks.SLURM_TELL_S and not self._told:
            self._told = True
            print(f"Slurm's {self._job}. Stop takes it out of the queue.", flush=True)
        return self._job.is_over

    def _log_tail(self, ranks: Collection[int]) -> str:
        if self._engine_set is None:
            return ""
        self._job = self._engine_set.ask_queue() or self._job
        logs = "".join(self._supervisor.log_tail(f"step-{r}") for r in ranks if r in self._steps)
        tail = super()._log_tail(ranks) or "\n"
        # Other ranks may have written so much since then that the tail lacks these lines.
        ends = dict.fromkeys(self._early[rank] for rank in ranks if rank in self._early)
        first = "".join(f"\n  slurm: {line}" for line in ends if line not in tail)
        return f"\n  slurm: {self._job}" + first + tail + logs

    # ---- deaths ----

    def _find_loss(self) -> str:
        deadline = time.monotonic() + clocks.SLURM_CAUSE_S
        job = self._engine_set.ask_queue()
        while job is not None and job.state == "COMPLETING" and time.monotonic() < deadline:
            time.sleep(clocks.SLURM_POLL_S)  # polls: Slurm says only after that what ended the job
            job = self._engine_set.ask_queue()
        if job is None or job.runs:
            return ""
        if job.waits:  # Slurm has requeued it: it would start again, though nothing waits for it
            with contextlib.suppress(LauncherError):  # `stop` tries it again
                self._engine_set.cancel()
        return f"Slurm says that their {job}"

    def _start_again(self, rank: int) -> None:
        if rank in self._steps:
            self._old_steps.append(self._steps.pop(rank))
        self._old_steps = [step for step in self._old_steps if step.poll() is None]
        host = self._host_infos[rank].host
        environment = {**self._options()["environment"], **self._own_number(rank)}
        anew = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        log = open_private(self._supervisor.folder / f"step-{rank}.log", anew)
        with os.fdopen(log, "wb") as file:
            self._steps[rank] = self._engine_set.start_step(environment, host, file)


def _end(step: subprocess.Popen[bytes]) -> None:
    """
    Wait for an srun whose job is over to end, and kill it if it takes too long.
    """
    try:
        step.wait(timeout=clocks.SLURM_END_S)
    except subprocess.TimeoutExpired:
        step.kill()
        step.wait()
