"""
Ranks that ssh starts. A rank whose host is gone is replaced on another host.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddp_lessons.errors import StartFailed
from ddp_lessons.ranks.kernel.launchers.unsupervised import UnsupervisedRankProcesses
from ddp_lessons.ranks.system import clocks

if TYPE_CHECKING:
    from ddp_lessons.ranks.kernel.launchers.ssh_launchers import (
        SSHEngineLauncher,
        SSHEngineSetLauncher,
    )
    from ddp_lessons.ranks.kernel.rank_processes import StartedCluster


class SSHRankProcesses(UnsupervisedRankProcesses):
    """
    The processes of ranks on the hosts of ipyparallel's SSHEngineSetLauncher.

    Its setting `engines` calls hosts by names, addresses or aliases of ~/.ssh/config, and may have
    settings for each. A host may call itself by another name, but an argument `host` of these
    methods is always the setting's name.

    Args:
        started: The StartedCluster.
    """

    _rank_from = "RANK"  # hosts start at the same time, so the order of registration varies

    def __init__(self, started: StartedCluster) -> None:
        super().__init__(started)
        # host -> whether it has accepted a login during this replacement
        self._knocked: dict[str, bool] = {}
        # launchers of the engines that are being started
        self._begun: list[SSHEngineLauncher] = []
        # host -> the launcher of an engine on it, with its settings
        self._latest: dict[str, SSHEngineLauncher] = {}

    def _start(self, n: int, options: Mapping[str, object]) -> SSHEngineSetLauncher:
        engine_set: SSHEngineSetLauncher = super()._start(n, options)
        if engine_set.n < n:
            raise StartFailed(
                f"Ranks could not be started: expected places for {n} ranks (got {engine_set.n}). "
                "c.SSHEngineSetLauncher.engines in ipcluster_config.py names hosts, and how many "
                'ranks each takes: {"node1": 2, "node2": 2}.'
            )
        self._begun += engine_set.launchers.values()
        self._latest.update((_host_of(one), one) for one in engine_set.launchers.values())
        return engine_set

    def _ended(self, missing: list[int]) -> list[int]:
        # A launcher cannot be matched to its rank before the engine has registered.
        return missing if any(launcher.has_ended for launcher in self._begun) else []

    def _engine_output(self) -> str:
        return "\n".join(launcher.get_output() for launcher in self._begun)

    def _next_step(self) -> str:
        return (
            'Try "ssh HOST true" in a terminal for each host of c.SSHEngineSetLauncher.engines: it '
            "must ask for nothing."
        )

    @property
    def lost_hosts(self) -> list[str]:
        """
        The names of hosts that have lost all their ranks, and may be gone themselves.
        """
        dead = self.dead
        hosts = {rank: there.host for rank, there in self._host_infos.items()}
        living = {host for rank, host in hosts.items() if rank not in dead}
        return sorted({hosts[rank] for rank in dead if rank in hosts} - living)

    def replace_dead(self) -> list[int]:
        """
        Replace each dead rank, on another host if its own is gone. Return the replaced ranks.
        """
        self._knocked.clear()
        self._begun.clear()
        return super().replace_dead()

    def _start_again(self, rank: int) -> None:
        was_on = _host_of(self._launcher_of_rank.get(rank))
        self._forget(rank)
        faults = []
        for host in self._hosts_for(was_on):
            settings = self._engine_set.engines[host]
            own = {**settings, "n": 1} if isinstance(settings, dict) else 1
            try:
                self._start(1, {**self._options_of(rank), "engines": {host: own}})
                return
            except StartFailed as error:  # that host is gone as well
                faults.append(f"{host}: {error.__cause__}")
        raise StartFailed(
            f"Rank {rank} could not be replaced: no host lets us in ({'; '.join(faults)}). "
            f"{self._next_step()}"
        )

    def _hosts_for(self, was_on: str) -> list[str]:
        """
        Return the hosts to try for a new process: hosts that answer first, and the old host before
        the others.
        """
        dead = self.dead
        living = {_host_of(one) for rank, one in self._launcher_of_rank.items() if rank not in dead}

        def cost(host: str) -> tuple[bool, bool]:
            is_there = host in living or self._lets_us_in(host, self._latest.get(host))
            return not is_there, host != was_on

        return sorted(self._engine_set.engines, key=cost)

    def _lets_us_in(self, host: str, launcher: SSHEngineLauncher | None) -> bool:
        """
        Return whether a host accepts a login soon. ipyparallel would wait long for a lost host.

        Args:
            host: The host's name in the setting.
            launcher: Launcher of an engine on the host. None: no engine ran there, so try the host.
        """
        if host not in self._knocked:
            self._knocked[host] = launcher is None or _knock(launcher)
        return self._knocked[host]


def _host_of(launcher: SSHEngineLauncher | None) -> str:
    # Return the host's name in the setting; empty if it is unknown.
    return launcher.identifier.rpartition("/")[0] if launcher else ""


def _knock(launcher: SSHEngineLauncher) -> bool:
    words = [*launcher.ssh_cmd, *launcher.ssh_args, "-o", f"ConnectTimeout={clocks.SSH_KNOCK_S}"]
    try:
        done = subprocess.run(
            [*words, launcher.location, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=2 * clocks.SSH_KNOCK_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
