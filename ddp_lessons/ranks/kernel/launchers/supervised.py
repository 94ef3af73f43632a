"""
ipyparallel launchers that have the supervisor start the controller and the ranks.

They are found through ipyparallel's entry points under the name `ddp-lessons`, so that
`ipp.Cluster(controller="ddp-lessons", engines="ddp-lessons")` and `ipcluster` can use them too.
Entry points of an installation stay as they are after a `git pull`, so this module keeps its name.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from typing import Literal, Self

import ipyparallel as ipp
import psutil
from ipyparallel.cluster import launcher as ipp_launcher
from traitlets import Any, Integer

from ddp_lessons.private.ipyparallel_cluster import end_cluster_thread
from ddp_lessons.ranks.kernel.cell_transport import tell_unreadable_results, unpack
from ddp_lessons.ranks.kernel.supervisor_client import SupervisorClient
from ddp_lessons.ranks.messages.orders import ImportTorch, StartRank
from ddp_lessons.ranks.supervisor.controller_options import controller_arguments
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout
from ddp_lessons.ranks.system.processes import can_fork


class RanksCluster(ipp.Cluster):  # type: ignore[misc]  # untyped
    """
    An ipyparallel cluster with one supervisor, which starts and ends its processes.
    """

    supervisor: SupervisorClient | None = Any(  # type: ignore[assignment]  # a trait
        help="The SupervisorClient of this cluster; None until something is started."
    )
    _connected = Any(help="The client; Stop may come before anybody else has hold of it.")

    def ensure_supervisor(self) -> SupervisorClient:
        """
        Return this cluster's supervisor client, and make it first if there is none.
        """
        if self.supervisor is None:
            self.supervisor = SupervisorClient(fork=can_fork()[0])
        return self.supervisor

    def write_cluster_file(self) -> None:
        """
        Write the file by which JupyterLab's sidebar finds this cluster, for this user only.
        """
        super().write_cluster_file()
        os.chmod(self.cluster_file, 0o600)

    async def connect_client(self, **options: object) -> ipp.Client:
        """
        Return a client of this cluster. `close` closes it.
        """
        self._connected = await super().connect_client(**options)
        self._connected.session.unpack = unpack
        tell_unreadable_results(self._connected)
        return self._connected

    def close(self) -> None:
        """
        Close the client, and end the thread in which ipyparallel runs this cluster's coroutines.

        ipyparallel never ends that thread. If Stop comes early, the thread may have no loop yet.
        """
        end_cluster_thread(self, begins_within_s=clocks.LOOP_S)
        if self._connected is not None:
            self._connected.close(linger=0)
            self._connected = None


class _SupervisorLauncher(ipp_launcher.BaseLauncher):  # type: ignore[misc]  # untyped
    """
    The common part of both launchers: the supervisor, which is found again by its process id.
    """

    supervisor_pid = Integer(-1).tag(to_dict=True)
    supervisor: SupervisorClient = Any(  # type: ignore[assignment]  # a trait
        help="The SupervisorClient; None before `start`, or if `from_dict` made this launcher."
    )

    @property
    def args(self) -> list[str]:
        return [self.identifier]

    def _adopt_supervisor(self) -> None:
        cluster = self.parent
        if isinstance(cluster, RanksCluster):
            self.supervisor = cluster.ensure_supervisor()
        elif getattr(cluster, "_ddp_lessons_supervisor", None) is not None:
            self.supervisor = cluster._ddp_lessons_supervisor
        else:
            self.supervisor = SupervisorClient(fork=can_fork()[0])
            if cluster is not None:
                cluster._ddp_lessons_supervisor = self.supervisor
        self.supervisor_pid = self.supervisor.supervisor_pid

    @classmethod
    def from_dict(cls, d: Mapping[str, object], **kwargs: object) -> Self:
        launcher: Self = super().from_dict(d, **kwargs)
        if not psutil.pid_exists(launcher.supervisor_pid):
            raise ipp_launcher.NotRunning(f"supervisor {launcher.supervisor_pid}")
        launcher.notify_start(launcher.supervisor_pid)
        return launcher

    def poll(self) -> Literal[0] | None:
        try:
            ended = psutil.Process(self.supervisor_pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            ended = True
        return 0 if ended else None

    async def join(self, timeout: float | None = None) -> None:
        deadline = asyncio.get_running_loop().time() + (timeout or float("inf"))
        while self.poll() is None:
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"supervisor {self.supervisor_pid} did not end in {timeout} s")
            await asyncio.sleep(clocks.CLUSTER_POLL_S)

    async def stop(self) -> None:
        # Ranks and controller have one parent and end together.
        try:
            os.kill(self.supervisor_pid, signal.SIGTERM)
            await self.join(timeout=clocks.CLUSTER_END_S)
        except ProcessLookupError:
            pass  # it has ended already
        self.notify_stop({"exit_code": 0, "identifier": self.identifier})


class SupervisorControllerLauncher(
    _SupervisorLauncher,
    ipp_launcher.ControllerLauncher,  # type: ignore[misc]  # untyped
):
    """
    The launcher that has the supervisor fork the controller.
    """

    def start(self) -> None:
        """
        Order the supervisor to start the controller, unless it has that order already.
        """
        self._adopt_supervisor()
        if not self.supervisor.controller_ordered:
            self.supervisor.order_controller(
                controller_arguments(self.profile_dir, self.cluster_id)
            )
        self.notify_start(self.supervisor_pid)

    async def get_connection_info(
        self, timeout: float | None = None
    ) -> dict[str, dict[str, object]]:
        """
        Return the connection info as soon as the controller has written it.
        """
        paths = list(self.connection_files.values())
        time_limit = LoadAwareTimeout(
            timeout or self.connection_info_timeout, lambda: [self.supervisor_pid]
        )
        while not all(_is_complete(path) for path in paths):
            if self.supervisor is not None:
                self.supervisor.check()
            if time_limit.is_over:
                break
            await asyncio.sleep(clocks.CONNECTION_POLL_S)
        info: dict[str, dict[str, object]] = await super().get_connection_info(timeout=0)
        return info


def _is_complete(path: str) -> bool:
    # The controller restricts a file's mode after it has written the whole file.
    try:
        return os.stat(path).st_mode & 0o077 == 0 and os.path.getsize(path) > 0
    except OSError:
        return False


class SupervisorEngineLauncher(
    _SupervisorLauncher,
    ipp_launcher.EngineLauncher,  # type: ignore[misc]  # untyped
):
    """
    The launcher that has the supervisor start the ranks, one engine for each rank.
    """

    environments: list[dict[str, str]] | None = Any(  # type: ignore[assignment]  # a trait
        help="Environment variables of each rank: a list of dictionaries."
    )
    num_threads = Integer(1, help="CPU threads of each rank.", config=True)

    def start(self, n: int) -> None:
        """
        Order the supervisor to start ranks 0 to n-1. A rank is ready once it has registered.
        """
        self._adopt_supervisor()
        self.n = n
        if self.supervisor.machine_facts is None:
            self.supervisor.order(ImportTorch())
        for rank in range(n):
            self.start_rank(rank)
        self.notify_start(self.supervisor_pid)

    def start_rank(self, rank: int) -> None:
        """
        Order the supervisor to start one rank, or to replace one that has died.
        """
        environment = {
            **(self.environments[rank] if self.environments else {}),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.n),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(self.n),
        }
        order = StartRank(
            rank,
            environment,
            self.num_threads,
            connection_file=self.connection_files["engine"],
            profile_dir=self.profile_dir,
        )
        self.supervisor.order(order)

    def signal(self, sig: int | str) -> None:
        """
        Send a signal to every rank.
        """
        signum = getattr(signal, f"SIG{sig}") if isinstance(sig, str) else sig
        self.supervisor.signal_ranks(range(self.n), signum)
