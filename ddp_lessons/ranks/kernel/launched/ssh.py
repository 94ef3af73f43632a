"""
Ranks that ssh starts: a rank whose host is gone gets a new process on another one.
"""

import subprocess
import time

from ddp_lessons.errors import StartFailed
from ddp_lessons.ranks.kernel.elsewhere import LaunchedEngines, short_name

_KNOCK_S = 2
_LOOK_EVERY_S = 5.0
"""
How often each engine that does not come up is looked for on its host.
"""


class SSHEngines(LaunchedEngines):
    """
    Ranks on the hosts of ipyparallel's SSHEngineSetLauncher.

    Args:
        keeper, cluster, client, placement, launcher: As `LaunchedEngines`.
    """

    def __init__(self, keeper, cluster, client, placement, launcher):
        super().__init__(keeper, cluster, client, placement, launcher)
        self._knocked = {}  # host -> whether it let us in, since a replacement has begun
        self._begun = []  # launchers of engines that are to come up
        self._looked_at = time.monotonic()

    def _start(self, n, options):
        engine_set = super()._start(n, options)
        if engine_set.n < n:
            raise StartFailed(
                f"Ranks could not be started: expected places for {n} ranks (got {engine_set.n}). "
                "c.SSHEngineSetLauncher.engines in ipcluster_config.py names hosts, and how many "
                'ranks each takes: {"node1": 2, "node2": 2}.'
            )
        self._begun += engine_set.launchers.values()
        self._looked_at = time.monotonic()
        return engine_set

    def _wait_until_registered(self, ranks, timeout_s):
        try:
            super()._wait_until_registered(ranks, timeout_s)
        finally:
            self._begun.clear()

    def _ended(self, missing):
        # Which of them is whose nobody knows before they have registered.
        if time.monotonic() - self._looked_at < _LOOK_EVERY_S:
            return []
        has_ended = any(launcher.has_ended for launcher in self._begun)
        self._looked_at = time.monotonic()
        return missing if has_ended else []

    def _said(self):
        return "\n".join(launcher.get_output() for launcher in self._begun)

    def _next_step(self):
        return (
            'Try "ssh HOST true" in a terminal for each host of c.SSHEngineSetLauncher.engines: it '
            "must ask for nothing."
        )

    @property
    def emptied_hosts(self):
        """
        As `Engines`.
        """
        dead, living = self.dead, self._living_hosts()
        emptied = {self._homes[rank]["host"] for rank in dead if rank in self._homes}
        return sorted(host for host in emptied if short_name(host) not in living)

    def _living_hosts(self):
        dead = self.dead
        return {short_name(there["host"]) for r, there in self._homes.items() if r not in dead}

    def replace_dead(self):
        """
        As `Engines`.
        """
        self._knocked.clear()
        return super().replace_dead()

    def _start_again(self, rank):
        self._forget(rank)
        faults = []
        for host in self._hosts_for(rank):
            try:
                self._start(1, {**self._options_of(rank), "engines": {host: 1}})
                return
            except StartFailed as error:  # that host is gone as well
                faults.append(f"{host}: {error.__cause__}")
        raise StartFailed(
            f"Rank {rank} could not be replaced: no host lets us in ({'; '.join(faults)}). "
            f"{self._next_step()}"
        )

    def _hosts_for(self, rank):
        """
        Return the hosts to try for a new process: its own first, and last those that are gone.
        """
        was_on = short_name(self._homes[rank]["host"]) if rank in self._homes else None
        living = self._living_hosts()

        def cost(host):
            name = short_name(_parts_of(host)[1])
            is_there = name in living or self._lets_us_in(host)
            return not is_there, name != was_on

        return sorted(self._engine_set.engines, key=cost)

    def _lets_us_in(self, host):
        """
        Whether a host answers soon. ipyparallel would wait for one that is gone, a login at a time.
        """
        if host not in self._knocked:
            self._knocked[host] = self._knock(host)
        return self._knocked[host]

    def _knock(self, host):
        user, name, port = _parts_of(host)
        words = [*self._engine_set.ssh_cmd, *self._engine_set.ssh_args]
        words += ["-o", f"ConnectTimeout={_KNOCK_S}", *(["-p", port] if port else [])]
        words += [f"{user}@{name}" if user else name, "true"]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=2 * _KNOCK_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def _parts_of(host):
    """
    Return user, name and port of "user@name:port"; what is not there is empty.
    """
    user, _, place = host.rpartition("@")
    name, _, port = place.partition(":")
    return user, name, port
