"""
Bring up one set of ranks: supervisor, controller, client, engines, in an order that wastes no time.
"""

import contextlib
import functools
import os
import sys
from dataclasses import replace
from pathlib import Path

from traitlets.config import Config

from ddp_lessons.errors import DDPLessonsError, StartFailed
from ddp_lessons.ranks.kernel.supervisor_client import SupervisorClient
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
    common_address,
    names_for_ssh,
)
from ddp_lessons.ranks.system.placement import BYTES_PER_RANK, Machine, choose_placement
from ddp_lessons.ranks.system.processes import can_fork
from ddp_lessons.ranks.system.resource_limits import memory, usable_cores

OWN = ("auto", "fork", "spawn")
"""
Launchers whose ranks are children of the supervisor.
"""
ELSEWHERE = ("slurm", "ssh")
"""
Launchers whose ranks are on other machines.
"""
ENGINE_COMMAND = [sys.executable, *RANK_OPTIONS]
"""
What ipyparallel's own launchers start: an engine with a agent.
"""


def this_machine(facts):
    """
    Return the Machine that ranks would be placed on.

    Args:
        facts: What the supervisor found once it had torch: `num_gpus`, `has_nccl`.
    """
    _, free_bytes = memory()
    return Machine(
        num_cores=usable_cores(),
        num_gpus=facts["num_gpus"],
        memory_bytes=free_bytes,
        has_nccl=facts["has_nccl"],
    )


def _profile_folder(fallback):
    """
    Return the IPython profile whose clusters JupyterLab's sidebar lists, or one of our own.
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


def listen_address(launcher, cluster):
    """
    Return the address on which a controller is to listen: the one that leads to its ranks.

    Args:
        launcher: As for `start_ranks`.
        cluster: The RanksCluster, which knows ipyparallel's configuration; None at home.

    Raises:
        StartFailed: No such address is known, or DDP_LESSONS_INTERFACE names none.
    """
    if launcher not in ELSEWHERE:
        return LOOPBACK
    chosen = os.environ.get("DDP_LESSONS_INTERFACE")
    if chosen:
        return EVERY_INTERFACE if chosen == EVERY_INTERFACE else chosen_address(chosen)
    if launcher == "slurm":  # which hosts it will be is not known before they run
        return EVERY_INTERFACE
    from ddp_lessons.ranks.kernel.launchers.ssh_launchers import SSHEngineSetLauncher

    ssh = SSHEngineSetLauncher(parent=cluster, profile_dir=cluster.profile_dir)
    names = names_for_ssh([*ssh.ssh_cmd, *ssh.ssh_args], ssh.engines)
    return common_address(names) if names else LOOPBACK


@contextlib.contextmanager
def starting(launcher, timeout_s):
    """
    Begin to start ranks. Whatever was started ends again if the block raises.

    Args:
        launcher: As for `start_ranks`.
        timeout_s: Seconds to wait for each step.

    Yields:
        Bootstrap: What is there so far. Two processes import and bind on their own by now.

    Raises:
        StartFailed: It did not come about.
    """
    supervisor = SupervisorClient(fork=launcher == "fork" or (launcher == "auto" and can_fork()[0]))
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
    A supervisor that imports torch, and a controller that binds its ports.

    Attributes:
        supervisor: The SupervisorClient.
        undo: An ExitStack: what ends again if the start fails.
    """

    def __init__(self, supervisor, launcher, timeout_s, undo):
        self.supervisor = supervisor
        self.undo = undo
        self._launcher = launcher
        self._timeout_s = timeout_s
        self._cluster_id = cluster_id = new_cluster_id()
        self._profile_dir = profile_dir = _profile_folder(supervisor.folder / "profile")
        supervisor.remove_at_end([str(file) for file in files_of(profile_dir, cluster_id)])
        cluster = self._cluster if launcher in ELSEWHERE else None
        listen = listen_address(launcher, cluster)
        # Ranks of other launchers listen on ports themselves, which takes the controller's keys.
        has_sockets = launcher in OWN and can_hold_sockets(supervisor.folder)
        folder = supervisor.folder if has_sockets else None
        supervisor.order_controller(controller_arguments(profile_dir, cluster_id, listen, folder))
        supervisor.order("import torch")
        remove_files_of_the_dead(profile_dir)

    @functools.cached_property
    def _cluster(self):
        # Made late: to import ipyparallel takes as long as others take to come up.
        from ddp_lessons.ranks.kernel.launchers.supervised import (
            RanksCluster,
            engines_launcher,
        )

        cluster = RanksCluster(
            controller="ddp-lessons",
            engines=engines_launcher(self._launcher),
            cluster_id=self._cluster_id,
            profile_dir=str(self._profile_dir),
            shutdown_atexit=False,
            send_engines_connection_env=True,
            config=Config({"EngineLauncher": {"engine_cmd": ENGINE_COMMAND}}),
            log_level=40,
        )
        cluster.supervisor = self.supervisor
        self.undo.callback(cluster.close)  # and its client
        return cluster

    def connect(self, n, device):
        """
        Connect to the controller, and say where ranks are to be.

        Args:
            n, device: As for `start_ranks`.

        Returns:
            (RanksCluster, Client, Placement): What Ranks are made of.
        """
        from ipyparallel.serialize import serialize_object

        cluster = self._cluster
        cluster.start_controller_sync()
        client = cluster.connect_client_sync(timeout=self._timeout_s)
        serialize_object(
            0
        )  # imports NumPy, for one; now is time, while the supervisor imports torch
        self.supervisor.wait_for(lambda: self.supervisor.facts, self._timeout_s, "importing torch")
        placement = choose_placement(n, device, this_machine(self.supervisor.facts))
        self.supervisor.held = rank_quota.hold(self.supervisor.folder, placement.world_size)
        return cluster, client, placement


def check_early(n, device, running=None):
    """
    Say what is wrong with arguments before anything is started, or running ranks are ended.

    Args:
        n, device: As for `start_ranks`.
        running: Ranks whose supervisor has seen this machine's GPUs, or None.

    Raises:
        BadInput: The number or the device cannot be had here.
    """
    # Without ranks nobody has torch loaded: a GPU that is missing shows later.
    facts = running.supervisor.facts if running else {"num_gpus": 1, "has_nccl": True}
    machine = this_machine(facts)
    freed_bytes = len(running) * BYTES_PER_RANK if running else 0
    machine = replace(machine, memory_bytes=machine.memory_bytes + freed_bytes)
    placement = choose_placement(n, device, machine)
    if running:
        rank_quota.check(placement.world_size, running.supervisor.folder)
