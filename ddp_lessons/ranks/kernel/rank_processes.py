"""
The processes of the ranks: how they start, which of them have died, and how they are replaced.
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_lessons.errors import StartFailed
from ddp_lessons.private.ipyparallel_client import report_death
from ddp_lessons.ranks.diagnosis.wording import rank_names
from ddp_lessons.ranks.messages.orders import RankProcessDied
from ddp_lessons.ranks.supervisor.controller_options import LOOPBACK
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout
from ddp_lessons.ranks.system.network_interfaces import GROUP_VARIABLES, interface_of

if TYPE_CHECKING:
    from ipyparallel import Client
    from ipyparallel.cluster.launcher import EngineLauncher

    from ddp_lessons.ranks.kernel.launchers.supervised import RanksCluster
    from ddp_lessons.ranks.kernel.supervisor_client import SupervisorClient
    from ddp_lessons.ranks.system.placement import Placement


@dataclass(frozen=True)
class StartedCluster:
    """
    The parts that are started before the ranks.

    Args:
        supervisor: The SupervisorClient.
        cluster: ipyparallel's cluster, with its controller.
        client: ipyparallel's client of that controller.
        placement: The Placement of the ranks.
        launcher: Name of the ranks' launcher in the registry.
    """

    supervisor: SupervisorClient
    cluster: RanksCluster
    client: Client
    placement: Placement
    launcher: str


class RankProcesses(ABC):
    """
    The processes of a launcher's ranks: one ipyparallel engine for each, with the rank as its id.

    Args:
        started: The StartedCluster.

    Attributes:
        is_supervised: Whether our supervisor is the ranks' parent, and can signal them.
        on_this_machine: Whether all ranks run on this machine, so that loopback is enough.
        shared_folder: The folder of the file stores. All ranks see it if `shares_files`.
    """

    is_supervised: bool = True
    on_this_machine: bool = True
    _replace_s = clocks.REPLACE_S

    def __init__(self, started: StartedCluster) -> None:
        self._supervisor = started.supervisor
        self._cluster = started.cluster
        self._client = started.client
        self._placement = started.placement
        self._engine_set: Any = None
        self._given_up: set[int] = set()  # process ids of ranks that we have ended ourselves
        self.shared_folder = Path(started.supervisor.folder)

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """
        Return the options for ipyparallel's launcher: its traits, by name.
        """

    @abstractmethod
    def _log_tail(self, ranks: Collection[int]) -> str:
        """
        Return the last log lines of ranks that did not start, each after a line feed; "" if none.
        """

    @abstractmethod
    def _ended_early(self, rank: int) -> bool:
        """
        Return whether a rank has ended before it registered.
        """

    @abstractmethod
    def _start_again(self, rank: int) -> None:
        """
        Start a new process for a rank.
        """

    @abstractmethod
    def stop(self) -> None:
        """
        End all ranks that the supervisor does not end.
        """

    @abstractmethod
    def kill_stuck(self, ranks: Collection[int]) -> None:
        """
        End the processes of ranks that cannot be released.
        """

    @abstractmethod
    def resume(self, ranks: Collection[int]) -> None:
        """
        Resume ranks that a signal has stopped.
        """

    @property
    @abstractmethod
    def dead(self) -> list[int]:
        """
        The ranks whose process has ended and was not replaced yet.
        """

    silent: Collection[int] = frozenset()
    """
    The dead ranks whose host does not answer, so that their processes may still run.
    """

    @property
    def shares_files(self) -> bool:
        """
        Whether all ranks see the kernel's files.
        """
        return True

    @property
    def hosts(self) -> dict[int, str]:
        """
        {rank: name of its host}; empty if all ranks are on this machine.
        """
        return {}

    @property
    def lost_hosts(self) -> list[str]:
        """
        The names of hosts that have lost all their ranks, and may be gone themselves.
        """
        return []

    @property
    def loss(self) -> str:
        """
        The cause that has ended all ranks for good, as a clause that follows a colon in a message;
        "" if there is none.
        """
        return ""

    def _next_step(self):
        """
        Return advice for a user whose ranks do not start.
        """
        return 'Run "ddp-lessons doctor" to see what is wrong.'

    @property
    def _ranks(self) -> range:
        return range(self._placement.world_size)

    def launch(self, timeout_s: float) -> None:
        """
        Start all engines and wait until they have registered.

        Raises:
            StartFailed: A rank did not start.
        """
        self._engine_set = self._start(len(self._ranks), self._options())
        self._wait_until_registered(self._ranks, timeout_s)

    def _start(self, n: int, options: Mapping[str, object]) -> EngineLauncher:
        """
        Start n engines, and return ipyparallel's launcher of them.

        ipyparallel calls the launcher's `start` in another thread, in which a notebook shows no
        output.
        """
        engine_set_id = self._cluster.start_engines_sync(n=n, **options)
        return self._cluster.engines[engine_set_id]

    def _wait_until_registered(self, ranks, timeout_s):
        wanted = set(ranks)
        time_limit = LoadAwareTimeout(timeout_s, self._startup_pids)
        while not wanted <= set(self._client.ids):
            missing = sorted(wanted - set(self._client.ids))
            ended = self._ended(missing)
            if ended or self._supervisor.error or self._supervisor.gone or time_limit.is_over:
                silent = ended or missing
                raise StartFailed(
                    f"Ranks could not be started: {rank_names(silent)} did not start."
                    f"{self._log_tail(silent)} {self._next_step()}"
                )
            time.sleep(clocks.POLL_S)  # polls, because ipyparallel's own wait looks less often

    def _ended(self, missing):
        return [rank for rank in missing if self._ended_early(rank)]

    def _startup_pids(self):
        return [
            self._supervisor.supervisor_pid,
            *self._supervisor.pids.values(),
            *self._controller_pids(),
        ]

    def _controller_pids(self):
        pid = self._supervisor.controller_pid
        return [] if pid is None else [pid]

    def pid(self, rank: int) -> int | None:
        """
        Return a rank's process id on its host, or None if it is dead.
        """
        return self._supervisor.pids.get(rank)

    def was_killed_by_us(self, pid: int | None) -> bool:
        """
        Return whether this kernel has ended a process.
        """
        return pid in self._given_up

    def replace_dead(self) -> list[int]:
        """
        Replace each dead rank by a new process with the same number.

        Returns:
            list[int]: The replaced ranks. Their variables are lost, and they are in no group.

        Raises:
            StartFailed: A new process did not start.
        """
        dead = self.dead
        for rank in dead:
            self._wait_until_forgotten(rank)
            self._start_again(rank)
        if dead:
            self._wait_until_registered(dead, self._replace_s)
        return dead

    def _wait_until_forgotten(self, rank):
        time_limit = LoadAwareTimeout(clocks.FORGET_S, self._controller_pids)
        while rank in self._client.ids and not time_limit.is_over:
            time.sleep(clocks.POLL_S)  # polls: the client's thread removes it from the list


class SupervisedRankProcesses(RankProcesses):
    """
    The processes of ranks on this machine that are children of our supervisor.
    """

    def __init__(self, started: StartedCluster) -> None:
        super().__init__(started)
        started.supervisor.on_event(self._on_supervisor_event)

    def stop(self) -> None:
        """
        Do nothing, because the supervisor ends its own children.
        """

    def _options(self):
        loopback = loopback_only()
        devices = self._placement.devices
        environments = [{**loopback, "DDP_LESSONS_DEVICE": device} for device in devices]
        return {"environments": environments, "num_threads": self._placement.num_threads}

    def _log_tail(self, ranks):
        return self._supervisor.log_tail("supervisor", *(f"rank-{rank}" for rank in ranks))

    def _ended_early(self, rank):
        return rank in self._supervisor.ended

    @property
    def dead(self) -> list[int]:
        """
        The ranks whose process has ended and was not replaced yet.
        """
        return [rank for rank in self._ranks if rank not in self._supervisor.pids]

    def kill_stuck(self, ranks: Collection[int]) -> None:
        """
        End the processes of ranks that cannot be released.
        """
        pids = self._supervisor.pids
        self._given_up.update(pids[r] for r in ranks if r in pids)
        self._supervisor.signal_ranks(ranks, signal.SIGKILL)

    def resume(self, ranks: Collection[int]) -> None:
        """
        Resume ranks that a signal has stopped.
        """
        self._supervisor.signal_ranks(ranks, signal.SIGCONT)

    def _start_again(self, rank):
        self._supervisor.ended.discard(rank)
        self._engine_set.start_rank(rank)

    def _on_supervisor_event(self, event):
        # Report the death to the controller at once. It then gives the rank's number to the next
        # engine that asks for it, and fails the requests that wait for the rank.
        if isinstance(event, RankProcessDied) and event.rank in self._client.ids:
            report_death(self._client, event.rank)


def loopback_only() -> dict[str, str]:
    """
    Return the environment variables that keep Gloo and NCCL on this machine.
    """
    return dict.fromkeys(GROUP_VARIABLES, interface_of(LOOPBACK))
