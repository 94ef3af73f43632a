"""
Ranks that one of ipyparallel's own launchers starts: by SSH, Slurm or MPI, here or elsewhere.

The guard inside of each frees it as it does at home. What is outside of it is the launcher's: it
says how a process is started, and ipyparallel's nanny, beside each engine, tells of its death.
"""

import json
import platform
import signal
from pathlib import Path

from ddp_lessons.errors import StartFailed
from ddp_lessons.ranks.kernel.engines import Engines, WardenEngines, loopback_only
from ddp_lessons.ranks.rank.home import home
from ddp_lessons.ranks.warden.controller import LOOPBACK

OWN = ("auto", "fork", "spawn")
_LOG_LINES = 12
_NEXT_STEPS = {
    "local": 'Run "ddp-lessons doctor" to see what is wrong.',
    "mpi": 'Try "mpiexec -n 2 hostname" in a terminal, with c.MPILauncher.mpi_args if it is set.',
    "slurm": 'Try "srun --nodes=1 hostname" in a terminal; c.SlurmLauncher has queue and account.',
    "ssh": 'Try "ssh HOST true" in a terminal for each host of c.SSHEngineSetLauncher.engines: it '
    "must ask for nothing.",
}
"""
What to try where a launcher fails. `c` is that of ipcluster_config.py, ipyparallel's configuration.
"""


def engines_of(launcher, keeper, cluster, client, placement):
    """
    Return the Engines for a launcher, as `start_ranks` takes it.

    Args:
        launcher: Its name.
        keeper, cluster, client, placement: As `Engines`.
    """
    if launcher in OWN:
        return WardenEngines(keeper, cluster, client, placement)
    return LaunchedEngines(keeper, cluster, client, placement, launcher)


class LaunchedEngines(Engines):
    """
    Ranks that ipyparallel's launcher has started, wherever it does.

    Args:
        keeper, cluster, client, placement: As `Engines`.
        launcher: Its name: "local", "mpi", "slurm" or "ssh".
    """

    has_warden = False
    _replace_s = 60.0  # to log in, to get a turn in a queue, and to import

    def __init__(self, keeper, cluster, client, placement, launcher):
        super().__init__(keeper, cluster, client, placement)
        self._launcher = launcher
        self._next_step = _NEXT_STEPS[launcher]
        self._homes = {}  # of each rank: see `home`
        self.on_this_machine = launcher in ("local", "mpi")
        if not self.on_this_machine:
            # Where hosts share a home, they share the profile, and this is its private folder.
            self.shared_folder = Path(cluster.profile_dir) / "security"

    def launch(self, timeout_s):
        """
        Start all engines, wait until they have registered, and ask each where it is.

        Raises:
            StartFailed: They did not come up, or are not fit to work with this kernel.
        """
        super().launch(timeout_s)
        self._ask_homes(self._ranks)

    def _start(self, n, options):
        before = set(self._cluster.engines)
        try:
            engine_set = super()._start(n, options)
        except Exception as error:  # each launcher fails in its own way
            for set_id in set(self._cluster.engines) - before:
                self._end(set_id)
            raise StartFailed(
                f"Ranks could not be started: launcher={self._launcher!r} failed with "
                f"{type(error).__name__}: {error}. {self._next_step}"
            ) from error
        if engine_set.n < n:
            raise StartFailed(
                f"Ranks could not be started: expected places for {n} ranks (got {engine_set.n}). "
                "c.SSHEngineSetLauncher.engines in ipcluster_config.py names hosts, and how many "
                'ranks each takes: {"node1": 2, "node2": 2}.'
            )
        return engine_set

    def stop(self):
        """
        End all engines, wherever they are.
        """
        for rank in self.dead:
            self._forget(rank)
        for set_id in list(self._cluster.engines):
            self._end(set_id)

    def _end(self, set_id):
        """
        End a set of engines, some of which may never have begun.
        """
        engine_set = self._cluster.engines[set_id]
        for key, launcher in list(getattr(engine_set, "launchers", {}).items()):
            if not launcher.running:
                del engine_set.launchers[key]
        if engine_set.running or getattr(engine_set, "launchers", {}):
            self._cluster.stop_engines_sync(set_id)
        self._cluster.engines.pop(set_id, None)

    def _options(self):
        # All that ipyparallel's launchers can give: the same variables for every engine.
        shared = {
            "WORLD_SIZE": str(len(self._ranks)),
            "OMP_NUM_THREADS": str(self._placement.num_threads),
        }
        return {"environment": {**shared, **(loopback_only() if self._only_here() else {})}}

    def _only_here(self):
        """
        Whether no rank can be elsewhere: where their controller listens, nobody else comes.
        """
        if self.on_this_machine:
            return True
        file = Path(self._cluster.controller.connection_files["engine"])
        return json.loads(file.read_text(encoding="utf-8"))["interface"] == f"tcp://{LOOPBACK}"

    def _log_tail(self, ranks):
        said = ""
        if self._engine_set is not None:
            said = self._engine_set.get_output()
        lines = said.strip().splitlines()[-_LOG_LINES:]
        return "".join(f"\n  {self._launcher}: {line}" for line in lines) + ("\n" if lines else "")

    def _ended_early(self, rank):
        return self._engine_set is not None and not self._engine_set.running

    # ---- where they are ----

    def _ask_homes(self, ranks):
        views = {rank: self._client.direct_view(rank) for rank in ranks}
        file = self._cluster.controller.connection_files["client"]
        asked = {rank: view.apply_async(home, file) for rank, view in views.items()}
        self._homes.update({rank: answer.get() for rank, answer in asked.items()})
        here = home(file)
        for rank in ranks:
            self._check(rank, self._homes[rank], here)

    def _check(self, rank, there, here):
        for what in ("python", "torch", "ddp_lessons"):
            if there[what] != here[what]:
                raise StartFailed(
                    f"Ranks could not be started: rank {rank} on {there['host']} has {what} "
                    f"{there[what]}: expected {here[what]}, as here. Install the same on all hosts."
                )

    @property
    def shares_files(self):
        """
        As `Engines`.
        """
        return all(there["sees_file"] for there in self._homes.values())

    @property
    def hosts(self):
        """
        As `Engines`.
        """
        named = {rank: there["host"] for rank, there in self._homes.items()}
        return {} if set(named.values()) <= {platform.node()} else named

    def pid(self, rank):
        """
        Return the process id on its host that a rank has, or had when it died.
        """
        return self._homes[rank]["pid"] if rank in self._homes else None

    # ---- deaths ----

    @property
    def dead(self):
        """
        Ranks that the controller has no engine of.
        """
        living = self._client.ids
        return [rank for rank in self._ranks if rank not in living]

    def give_up(self, ranks):
        """
        End the processes of ranks that nothing else can free: their nannies do it.
        """
        ranks = [rank for rank in ranks if rank in self._client.ids]
        self._given_up.update(self._homes[rank]["pid"] for rank in ranks)
        self._client.send_signal(signal.SIGKILL, targets=ranks, block=False)

    def replace_dead(self):
        """
        Start new engines for the dead, each alone, and where it was if that host is there.

        Returns:
            list[int]: As `Engines`.

        Raises:
            StartFailed: As `Engines`.
        """
        dead = super().replace_dead()
        self._ask_homes(dead)
        return dead

    def _forget(self, rank):
        """
        Have no launcher look for a process that is no more.
        """
        was = self._homes.get(rank)
        for engine_set in self._cluster.engines.values():
            for key, launcher in list(getattr(engine_set, "launchers", {}).items()):
                host = _name_of(getattr(launcher, "hostname", "") or "")
                if was and launcher.pid == was["pid"] and host in ("", was["host"]):
                    del engine_set.launchers[key]

    def _start_again(self, rank):
        self._forget(rank)
        options = self._options()
        options["environment"]["RANK"] = str(rank)
        if self._launcher != "ssh":
            self._start(1, options)
            return
        faults = []
        for host in self._hosts_for(rank):
            try:
                self._start(1, {**options, "engines": {host: 1}})
                return
            except StartFailed as error:  # that host is gone as well
                faults.append(f"{host}: {error.__cause__}")
        raise StartFailed(
            f"Rank {rank} could not be replaced: no host lets us in ({'; '.join(faults)}). "
            f"{self._next_step}"
        )

    def _hosts_for(self, rank):
        """
        Return the hosts to try for a new process: its own first.
        """
        hosts = list(self._engine_set.engines)
        was_on = self._homes[rank]["host"] if rank in self._homes else None
        return sorted(hosts, key=lambda host: _name_of(host) != was_on)


def _name_of(host):
    """
    Return the host's name in "user@name:port".
    """
    return host.rpartition("@")[2].partition(":")[0]
