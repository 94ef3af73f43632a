"""
The rank processes of all launchers that are ipyparallel's, on this machine or on others.

A rank agent releases each rank, as it does under a supervisor. The launcher starts the process,
and ipyparallel's `KernelNanny`, a process next to each engine, reports its death.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ipyparallel.cluster.launcher import EngineLauncher, LauncherError

from ddp_lessons.errors import RanksGone, StartFailed
from ddp_lessons.ranks.diagnosis.conclusion import lost_message
from ddp_lessons.ranks.diagnosis.wording import rank_names
from ddp_lessons.ranks.kernel.launchers.hosts_of_ranks import (
    ask_hosts_of_ranks,
    count_ranks_by_host,
    note_silent_ranks,
    short_name,
)
from ddp_lessons.ranks.kernel.launchers.registry import RANK_LAUNCHERS
from ddp_lessons.ranks.kernel.rank_processes import RankProcesses, loopback_only
from ddp_lessons.ranks.messages.rank_start import RANK_FROM, HostInfo
from ddp_lessons.ranks.rank.host_info import host_info
from ddp_lessons.ranks.supervisor.controller_options import LOOPBACK
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.rank_processes import StartedCluster

_LOG_LINES = 12


class UnsupervisedRankProcesses(RankProcesses):
    """
    The processes of ranks that one of ipyparallel's launchers has started.

    Args:
        started: The StartedCluster.
    """

    is_supervised: bool = False
    _replace_s = clocks.REPLACE_ELSEWHERE_S
    _rank_from = ""  # variables in which the launcher gives each engine its number

    def __init__(self, started: StartedCluster) -> None:
        super().__init__(started)
        self._launcher_name = started.launcher
        self._host_infos: dict[int, HostInfo] = {}  # of each rank
        # rank -> ipyparallel's launcher of its engine, if it has its own
        self._launcher_of_rank: dict[int, EngineLauncher] = {}
        self._kernel_host: HostInfo | None = None
        self._places: dict[int, tuple[int, int]] = {}  # rank -> (number on its host, ranks there)
        self._loss = ""
        self._replaced: set[int] = set()  # being replaced, perhaps since an earlier attempt
        self._silent: set[int] = set()
        self.silent = self._silent
        note_silent_ranks(started.client, self._silent)
        self.on_this_machine = not RANK_LAUNCHERS[started.launcher].is_elsewhere
        if not self.on_this_machine:
            # Hosts that share home directories share the profile. This is its private folder.
            self.shared_folder = Path(started.cluster.profile_dir) / "security"

    def launch(self, timeout_s: float) -> None:
        """
        Start all engines, wait until they have registered, and ask each for its host.

        Raises:
            StartFailed: A rank did not start, or has other versions than this kernel.
        """
        super().launch(timeout_s)
        self._ask_host_infos(self._ranks)

    def _start(self, n: int, options: Mapping[str, object]) -> EngineLauncher:
        before = set(self._cluster.engines)
        try:
            engine_set = super()._start(n, options)
        except Exception as error:  # each launcher fails in its own way
            for set_id in set(self._cluster.engines) - before:
                self._end(set_id)
            said = str(error)
            if not isinstance(error, LauncherError):
                said = f"{type(error).__name__}: {error}"
            raise StartFailed(
                f"Ranks could not be started: launcher={self._launcher_name!r} failed with {said}. "
                f"{self._next_step()}"
            ) from error
        return engine_set

    def stop(self) -> None:
        """
        End all engines, on all hosts.
        """
        for rank in self.dead:
            self._forget(rank)
        for set_id in list(self._cluster.engines):
            self._end(set_id)

    def _end(self, set_id: str) -> None:
        """
        End a set of engines, some of which may never have started.
        """
        engine_set = self._cluster.engines[set_id]
        for key, launcher in list(getattr(engine_set, "launchers", {}).items()):
            if not launcher.running:
                del engine_set.launchers[key]
        if engine_set.running or getattr(engine_set, "launchers", {}):
            self._cluster.stop_engines_sync(set_id)
        self._cluster.engines.pop(set_id, None)

    def _options(self) -> dict[str, dict[str, str]]:
        # ipyparallel's launchers can only set the same variables for every engine.
        shared = {
            "WORLD_SIZE": str(len(self._ranks)),
            "OMP_NUM_THREADS": str(self._placement.num_threads),
            RANK_FROM: self._rank_from,
            clocks.SCALE_VARIABLE: str(clocks.SCALE),  # other hosts do not inherit it
        }
        return {"environment": {**shared, **(loopback_only() if self._only_here() else {})}}

    def _only_here(self) -> bool:
        """
        Return whether all ranks must be on this machine, as where the controller uses loopback.
        """
        if self.on_this_machine:
            return True
        file = Path(self._cluster.controller.connection_files["engine"])
        interface: str = json.loads(file.read_text(encoding="utf-8"))["interface"]
        return interface == f"tcp://{LOOPBACK}"

    def _engine_output(self) -> str:
        """
        Return the output of the engines; empty before they are started.
        """
        return "" if self._engine_set is None else self._engine_set.get_output()

    def _log_tail(self, ranks: Collection[int]) -> str:
        lines = self._engine_output().strip().splitlines()[-_LOG_LINES:]
        shown = "".join(f"\n  {self._launcher_name}: {line}" for line in lines)
        return shown + ("\n" if lines else "")

    def _ended_early(self, rank: int) -> bool:
        return self._engine_set is not None and not self._engine_set.running

    # ---- where they are ----

    def _ask_host_infos(self, ranks: Collection[int]) -> None:
        file = self._cluster.controller.connection_files["client"]
        here = self._kernel_host = host_info(file)
        time_limit = LoadAwareTimeout(clocks.HOST_INFO_S, self._startup_pids)
        found = ask_hosts_of_ranks(self._client, ranks, file, time_limit)
        if silent := [rank for rank in ranks if rank not in found]:
            raise StartFailed(
                f"Ranks could not be started: {rank_names(silent)} started and did not say where: "
                "expected the same course on all hosts as here. Install the same on all hosts."
                f"{self._log_tail(silent)}"
            )
        for rank, there in found.items():
            self._check(rank, there, here)
        self._host_infos.update(found)
        self._note_launcher_of_rank(found)
        count_ranks_by_host(self._client, self._host_infos, self._places, ranks)

    def _note_launcher_of_rank(self, host_infos: Mapping[int, HostInfo]) -> None:
        # A launcher knows its process by its id, but a process on another host may have the same.
        for rank, there in host_infos.items():
            held = list(self._launcher_of_rank.values())
            free = [one for one in self._all_launchers() if one not in held]
            alike = [launcher for launcher in free if launcher.pid == there.pid]
            host = short_name(there.host)
            named = [one for one in alike if short_name(getattr(one, "hostname", "")) == host]
            if named or alike:
                self._launcher_of_rank[rank] = (named or alike)[0]

    def _all_launchers(self) -> list[EngineLauncher]:
        sets = self._cluster.engines.values()
        return [one for each in sets for one in getattr(each, "launchers", {}).values()]

    def _check(self, rank: int, there: HostInfo, here: HostInfo) -> None:
        for what in ("python", "torch", "ddp_lessons"):
            if getattr(there, what) != getattr(here, what):
                raise StartFailed(
                    f"Ranks could not be started: rank {rank} on {there.host} has {what} "
                    f"{getattr(there, what)}: expected {getattr(here, what)}, as here. Install the "
                    "same on all hosts."
                )

    @property
    def shares_files(self) -> bool:
        """
        Whether all ranks see the kernel's files.
        """
        return all(there.sees_file for there in self._host_infos.values())

    @property
    def hosts(self) -> dict[int, str]:
        """
        {rank: name of its host}; empty if all ranks are on this machine.
        """
        here = set() if self._kernel_host is None else {self._kernel_host.host}
        named = {rank: there.host for rank, there in self._host_infos.items()}
        return {} if set(named.values()) <= here else named

    def pid(self, rank: int) -> int | None:
        """
        Return a rank's process id on its host, even after its death; None if it is unknown.
        """
        return self._host_infos[rank].pid if rank in self._host_infos else None

    # ---- deaths ----

    @property
    def dead(self) -> list[int]:
        """
        The ranks that have no engine registered at the controller.
        """
        living = self._client.ids
        return [rank for rank in self._ranks if rank not in living]

    @property
    def loss(self) -> str:
        """
        The cause that has ended all ranks; empty if there is none. Once found, it stays.
        """
        if not self._loss and self.dead:
            self._loss = self._find_loss()
        return self._loss

    def _find_loss(self) -> str:
        """
        Return what has ended all ranks, now that some are dead; empty if they can be replaced.
        """
        return ""

    def kill_stuck(self, ranks: Collection[int]) -> None:
        """
        End the processes of ranks that cannot be released, through each rank's `KernelNanny`.
        """
        ranks = [rank for rank in ranks if rank in self._client.ids]
        self._given_up.update(self._host_infos[rank].pid for rank in ranks)
        self._client.send_signal(signal.SIGKILL, targets=ranks, block=False)

    def resume(self, ranks: Collection[int]) -> None:
        """
        Resume ranks that a signal has stopped, through each rank's `KernelNanny`.
        """
        ranks = [rank for rank in ranks if rank in self._client.ids]
        if ranks:
            self._client.send_signal(signal.SIGCONT, targets=ranks, block=False)

    def replace_dead(self) -> list[int]:
        """
        Replace each dead rank by an engine of its own, on the same host if that still answers.

        Returns:
            list[int]: The replaced ranks.

        Raises:
            StartFailed: A new engine did not start, or has other versions than this kernel.
            RanksGone: The launcher has ended all ranks.
        """
        if self.loss:
            raise RanksGone(lost_message(self.loss))
        self._replaced.update(self.dead)
        begun = set(self._cluster.engines)
        try:
            super().replace_dead()
            if self._replaced:
                self._ask_host_infos(sorted(self._replaced))
        except BaseException:  # Stop, or a fault: no new engine may register later
            for set_id in set(self._cluster.engines) - begun:
                self._end(set_id)
            raise
        replaced = sorted(self._replaced)
        self._silent.difference_update(replaced)
        self._replaced.clear()
        return replaced

    def _forget(self, rank: int) -> None:
        """
        Remove the launcher of a dead rank, so that nothing waits for the rank's process any more.
        """
        mine = self._launcher_of_rank.pop(rank, None)
        for engine_set in self._cluster.engines.values():
            for key, launcher in list(getattr(engine_set, "launchers", {}).items()):
                if launcher is mine:
                    launcher.stop_callbacks.clear()  # else the set would look for this launcher
                    del engine_set.launchers[key]

    def _start_again(self, rank: int) -> None:
        self._forget(rank)
        self._start(1, self._options_of(rank))

    def _options_of(self, rank: int) -> dict[str, dict[str, str]]:
        """
        Return the options of an engine that is started alone.
        """
        options = self._options()
        options["environment"].update(self._own_number(rank))
        return options

    def _own_number(self, rank: int) -> dict[str, str]:
        """
        Return the variables that give an engine that is started alone its rank.
        """
        return {RANK_FROM: "RANK", "RANK": str(rank)}
