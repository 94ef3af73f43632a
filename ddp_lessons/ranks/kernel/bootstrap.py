"""
The bootstrap of one set of ranks. Slow steps, such as the import of torch, run side by side.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traitlets.config import Config

from ddp_lessons.errors import DDPLessonsError, StartFailed
from ddp_lessons.ranks.kernel.launchers.registry import RANK_LAUNCHERS, load
from ddp_lessons.ranks.kernel.supervisor_client import SupervisorClient
from ddp_lessons.ranks.messages.orders import ImportTorch, TorchImported
from ddp_lessons.ranks.supervisor.child_main import RANK_OPTIONS
from ddp_lessons.ranks.supervisor.controller_options import (
    EVERY_INTERFACE,
    LOOPBACK,
    can_hold_sockets,
    controller_arguments,
)
from ddp_lessons.ranks.system import rank_quota
from ddp_lessons.ranks.system.cluster_files import (
    files_of,
    new_cluster_id,
    remove_files_of_the_dead,
)
from ddp_lessons.ranks.system.network_interfaces import (
    chosen_address,
)
from ddp_lessons.ranks.system.placement import BYTES_PER_RANK, MachineResources, choose_placement
from ddp_lessons.ranks.system.processes import can_fork
from ddp_lessons.ranks.system.resource_limits import memory, usable_cores

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.launchers.supervised import RanksCluster
    from ddp_lessons.ranks.kernel.rank_processes import StartedCluster
    from ddp_lessons.ranks.kernel.ranks import Ranks

ENGINE_COMMAND = [sys.executable, *RANK_OPTIONS]
"""
The command that ipyparallel's own launchers run: it starts an engine with a rank agent.
"""


def this_machine(facts: TorchImported) -> MachineResources:
    """
    Return the MachineResources that ranks would be placed on.

    Args:
        facts: The TorchImported, with what the supervisor has found out through torch.
    """
    _, free_bytes = memory()
    return MachineResources(
        num_cores=usable_cores(),
        num_gpus=facts.num_gpus,
        memory_bytes=free_bytes,
        has_nccl=facts.has_nccl,
    )


def _profile_folder(fallback):
    """
    Return the folder of the IPython profile whose clusters JupyterLab's sidebar lists.

    If that folder cannot be written, make a profile in the folder `fallback` and return it.
    """
    from IPython import get_ipython
    from IPython.core.profiledir import ProfileDir
    from IPython.paths import get_ipython_dir

    shell = get_ipython()
    try:
        if shell is not None:
            location = shell.profile_dir.location
        else:
            location = ProfileDir.create_profile_dir_by_name(get_ipython_dir()).location
        if os.access(Path(location) / "security", os.W_OK):
            return location
    except (OSError, AttributeError):
        pass  # a read-only home: the sidebar cannot list these ranks, everything else works
    return ProfileDir.create_profile_dir(fallback).location


def listen_address(launcher: str, cluster: "RanksCluster | None") -> str:
    """
    Return the address on which the controller listens, so that its ranks can reach it.

    Args:
        launcher: Name of the launcher (see `start_ranks`).
        cluster: The RanksCluster, which has ipyparallel's configuration; None for ranks on this
            machine.

    Raises:
        StartFailed: No such address was found, or DDP_LESSONS_INTERFACE names no address here.
    """
    entry = RANK_LAUNCHERS[launcher]
    if not entry.listen_address:
        return LOOPBACK
    chosen = os.environ.get("DDP_LESSONS_INTERFACE")
    if chosen:
        return EVERY_INTERFACE if chosen == EVERY_INTERFACE else chosen_address(chosen)
    return load(entry.listen_address)(cluster)


@contextlib.contextmanager
def starting(launcher: str, timeout_s: float) -> "Iterator[Bootstrap]":
    """
    Begin to start ranks. If the `with` block raises, end everything that was started.

    Args:
        launcher: Name of the launcher (see `start_ranks`).
        timeout_s: Seconds to wait for each step.

    Yields:
        Bootstrap: The start so far. The supervisor and the controller are starting by now.

    Raises:
        StartFailed: A step failed, or took longer than `timeout_s`.
    """
    supervisor = SupervisorClient(fork=RANK_LAUNCHERS[launcher].may_fork and can_fork()[0])
    try:
        with contextlib.ExitStack() as undo:
            yield Bootstrap(supervisor, launcher, timeout_s, undo)
            undo.pop_all()
    except DDPLessonsError:
        supervisor.stop()
        raise
    except OSError as error:
        fault = error.strerror or error
        if isinstance(error, TimeoutError):
            fault = f"the controller did not answer in {timeout_s:.0f} s"
        logs = supervisor.log_tail()
        supervisor.stop()
        raise StartFailed(
            f"Ranks could not be started: {fault}.{logs} "
            'Run "ddp-lessons doctor" to see what this machine lacks.'
        ) from error
    except BaseException:
        supervisor.stop()
        raise


class Bootstrap:
    """
    A start that has begun: the supervisor imports torch, and the controller binds its ports.

    Attributes:
        supervisor: The SupervisorClient.
        undo: An ExitStack of functions that end what was started, if the start fails.
    """

    def __init__(
        self,
        supervisor: SupervisorClient,
        launcher: str,
        timeout_s: float,
        undo: contextlib.ExitStack,
    ) -> None:
        self.supervisor = supervisor
        self.undo = undo
        self._launcher = launcher
        self._timeout_s = timeout_s
        self._cluster_id = cluster_id = new_cluster_id()
        self._profile_dir = profile_dir = _profile_folder(supervisor.folder / "profile")
        supervisor.remove_at_end([str(file) for file in files_of(profile_dir, cluster_id)])
        entry = RANK_LAUNCHERS[launcher]
        cluster = self._cluster if entry.listen_address else None
        listen = listen_address(launcher, cluster)
        # Ranks of other launchers listen on ports, encrypted with the controller's keys. A
        # controller with sockets in a folder has no keys.
        has_sockets = entry.is_supervised and can_hold_sockets(supervisor.folder)
        folder = supervisor.folder if has_sockets else None
        supervisor.order_controller(controller_arguments(profile_dir, cluster_id, listen, folder))
        supervisor.order(ImportTorch())
        remove_files_of_the_dead(profile_dir)

    @functools.cached_property
    def _cluster(self):
        # Made late: the supervisor and the controller start while this process imports ipyparallel.
        from ddp_lessons.ranks.kernel.launchers.supervised import RanksCluster

        cluster = RanksCluster(
            controller="ddp-lessons",
            engines=load(RANK_LAUNCHERS[self._launcher].engine_launcher),
            cluster_id=self._cluster_id,
            profile_dir=str(self._profile_dir),
            shutdown_atexit=False,
            send_engines_connection_env=True,
            config=Config({"EngineLauncher": {"engine_cmd": ENGINE_COMMAND}}),
            log_level=40,
        )
        cluster.supervisor = self.supervisor
        self.undo.callback(cluster.close)  # this closes the client, too
        return cluster

    def connect(self, n: int | None, device: str) -> "StartedCluster":
        """
        Connect to the controller, and decide on the placement of the ranks.

        Args:
            n, device: The arguments of `start_ranks`: number of ranks or None, and their device.

        Returns:
            StartedCluster: The started parts, with which RankProcesses start the ranks.
        """
        from ipyparallel.serialize import serialize_object

        from ddp_lessons.ranks.kernel.rank_processes import StartedCluster

        cluster = self._cluster
        cluster.start_controller_sync()
        client = cluster.connect_client_sync(timeout=self._timeout_s)
        # The first call imports NumPy and more. Now is the time: the supervisor imports torch.
        serialize_object(0)
        self.supervisor.wait_for(
            lambda: self.supervisor.machine_facts, self._timeout_s, "importing torch"
        )
        assert self.supervisor.machine_facts is not None
        placement = choose_placement(n, device, this_machine(self.supervisor.machine_facts))
        self.supervisor.quota_lock = rank_quota.hold(self.supervisor.folder, placement.world_size)
        return StartedCluster(self.supervisor, cluster, client, placement, self._launcher)


def check_early(n: int | None, device: str, running: "Ranks | None" = None) -> None:
    """
    Check arguments of `start_ranks` before ranks are started, or running ranks are ended.

    Args:
        n, device: The arguments of `start_ranks`: number of ranks or None, and their device.
        running: The running Ranks, whose supervisor has counted the GPUs here; or None.

    Raises:
        BadInput: This machine cannot hold so many ranks, or lacks the device.
    """
    # torch is not loaded yet, so assume a GPU. A missing GPU is reported at the start.
    facts = (
        running.supervisor.machine_facts if running else TorchImported(num_gpus=1, has_nccl=True)
    )
    assert facts is not None
    machine = this_machine(facts)
    freed_bytes = len(running) * BYTES_PER_RANK if running else 0
    machine = replace(machine, memory_bytes=machine.memory_bytes + freed_bytes)
    placement = choose_placement(n, device, machine)
    if running:
        rank_quota.check(placement.world_size, running.supervisor.folder)
