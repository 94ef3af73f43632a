"""
The processes of the ranks: start them, know which have died, put new ones in their place.
"""

import signal
import time

import psutil

from ddp_lessons.errors import RanksGone, StartFailed
from ddp_lessons.ranks.diagnosis.telling import rank_names
from ddp_lessons.ranks.system.patience import Patience

_FORGET_S = 5.0
_REPLACE_S = 10.0
"""
Seconds of proven sleep of those who have to act: see `Patience`. Load stretches them.
"""
_LOG_LINES = 12


class Engines:
    """
    One ipyparallel engine a rank, whose id is the rank.

    Args:
        keeper: The warden's Keeper.
        cluster: ipyparallel's cluster.
        client: ipyparallel's client.
        placement: The Placement of the ranks.
        launcher: Name of the launcher, as `start_ranks` takes it.
    """

    def __init__(self, keeper, cluster, client, placement, launcher):
        self._keeper = keeper
        self._cluster = cluster
        self._client = client
        self._placement = placement
        self._launcher = launcher
        self._engine_set = None
        self._given_up = set()  # process ids of ranks that we have ended ourselves
        keeper.on_event(self._on_keeper_event)

    @property
    def has_warden(self):
        """
        Whether our warden is the ranks' parent; ipyparallel's other launchers have none.
        """
        return self._launcher in ("auto", "fork", "spawn")

    @property
    def _ranks(self):
        return range(self._placement.world_size)

    def launch(self, timeout_s):
        """
        Start all engines and wait until they have registered.
        """
        engine_set_id = self._cluster.start_engines_sync(n=len(self._ranks), **self._options())
        self._engine_set = self._cluster.engines[engine_set_id]
        self._wait_until_registered(self._ranks, timeout_s)

    def stop(self):
        """
        End engines that are not the warden's; the warden ends its own.
        """
        if not self.has_warden:
            self._cluster.stop_engines_sync()

    def _options(self):
        placement = self._placement
        if self.has_warden:
            loopback = _loopback_only()
            environments = [
                {**loopback, "DDP_LESSONS_DEVICE": device} for device in placement.devices
            ]
            return {"environments": environments, "num_threads": placement.num_threads}
        # All that ipyparallel's own launchers can give: the same variables for every engine.
        shared = {
            "WORLD_SIZE": str(len(self._ranks)),
            "OMP_NUM_THREADS": str(placement.num_threads),
        }
        on_this_machine = self._launcher in ("local", "mpi")
        return {"environment": {**shared, **(_loopback_only() if on_this_machine else {})}}

    def _wait_until_registered(self, ranks, timeout_s):
        wanted = set(ranks)
        patience = Patience(timeout_s, self._startup_pids)
        while not wanted <= set(self._client.ids):
            missing = sorted(wanted - set(self._client.ids))
            ended = [rank for rank in missing if self._ended_early(rank)]
            if ended or self._keeper.error or self._keeper.gone or patience.is_over:
                silent = ended or missing
                logs = self._log_tail(silent)
                raise StartFailed(
                    f"Ranks could not be started: {rank_names(silent)} did not come up."
                    f'{logs} Run "ddp-lessons doctor" to see what is wrong.'
                )
            time.sleep(0.002)  # polls; ipyparallel's own wait wakes up less often

    def _startup_pids(self):
        return [self._keeper.warden_pid, *self._keeper.pids.values(), *self._controller_pids()]

    def _controller_pids(self):
        pid = self._keeper.controller_pid
        return [] if pid is None else [pid]

    def _log_tail(self, ranks):
        if self.has_warden:
            return self._keeper.log_tail("warden", *(f"rank-{rank}" for rank in ranks))
        said = self._engine_set.get_output().strip().splitlines()[-_LOG_LINES:]
        return "".join(f"\n  {self._launcher}: {line}" for line in said) + ("\n" if said else "")

    def _ended_early(self, rank):
        return self.has_warden and self._keeper.last_word.get(rank) == "died"

    @property
    def dead(self):
        """
        Ranks whose process has ended and was not replaced yet.
        """
        living = self._keeper.pids if self.has_warden else self._client.ids
        return [rank for rank in self._ranks if rank not in living]

    def give_up(self, ranks):
        """
        End the processes of ranks that nothing else can free.
        """
        pids = self._keeper.pids
        self._given_up.update(pids[r] for r in ranks if r in pids)
        self._keeper.signal_ranks(ranks, signal.SIGKILL)

    def was_given_up(self, pid):
        """
        Whether it was us who ended a process.
        """
        return pid in self._given_up

    def replace_dead(self):
        """
        Put a new process in the place of each dead rank, with the same number.

        Returns:
            list[int]: The ranks that were replaced. Their variables are gone; they are in no group.

        Raises:
            RanksGone: The ranks are another launcher's, which cannot replace one.
        """
        dead = self.dead
        if not dead:
            return []
        if not self.has_warden:
            raise RanksGone(
                f"{rank_names(dead)} died: launcher={self._launcher!r} cannot replace a rank. "
                "Call ranks.stop(), then start_ranks()."
            )
        for rank in dead:
            self._wait_until_forgotten(rank)
            self._keeper.last_word.pop(rank, None)
            self._engine_set.start_rank(rank)
        self._wait_until_registered(dead, _REPLACE_S)
        return dead

    def _on_keeper_event(self, message):
        # The hub is told at once: it frees the number, and whoever waits for that rank hears of it.
        if message["at"] == "died" and message["rank"] in self._client.ids:
            client, content = self._client, {"id": message["rank"]}
            client._send(client._query_stream, "unregistration_request", content=content)

    def _wait_until_forgotten(self, rank):
        patience = Patience(_FORGET_S, self._controller_pids)
        while rank in self._client.ids and not patience.is_over:
            time.sleep(0.002)  # polls: the client's own thread takes it off the list


def _loopback_only():
    name = "lo"
    for interface, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            name = interface
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
