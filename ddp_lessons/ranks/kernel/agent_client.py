"""
The kernel's line to the agents: ask ranks where they are, and free them, while they run a cell.
"""

import json
from concurrent.futures import wait

from ddp_lessons.private.ipyparallel_client import identity_of, send_control
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout

_CHANNELS = ("registration", "control", "mux", "task", "iopub", "hb_ping", "hb_pong")


class AgentClient:
    """
    Requests to the agents, through ipyparallel's control channel, which no cell can block.

    Args:
        supervisor: The SupervisorClient.
        cluster: ipyparallel's cluster.
        client: ipyparallel's client.
        has_supervisor: Whether the supervisor is the ranks' parent.
    """

    def __init__(self, supervisor, cluster, client, has_supervisor):
        self._supervisor = supervisor
        self._cluster = cluster
        self._client = client
        self._has_supervisor = has_supervisor
        self._releases = []  # (rank, who it was, future) of those that were not answered

    def ask_place(self, ranks):
        """
        Ask ranks where they are. Does not wait.

        Returns:
            dict[int, Future]: The answer of each, which has `RankAgent.place` as its "answer".
        """
        return self._request(ranks, "snapshot_request")

    def ask_state(self, ranks):
        """
        Ask ranks whether they are idle, and touch nothing. Does not wait.

        Returns:
            dict[int, Future]: The answer of each, which has `RankAgent.state` as its "answer".
        """
        return self._request(ranks, "state_request")

    def snapshots(self, ranks):
        """
        Ask idle ranks where they are, and wait for those that only are kept from the cores.

        Returns:
            dict[int, dict]: `RankAgent.place` of each rank that answered.
        """
        futures = self.ask_place(ranks)
        time_limit = LoadAwareTimeout(clocks.IDLE_ANSWER_S, lambda: self.pids(ranks))
        poll_s = clocks.CONTROL_POLL_S
        while wait(futures.values(), timeout=poll_s).not_done and not time_limit.is_over:
            pass
        return {
            rank: future.result()["content"]["answer"]
            for rank, future in futures.items()
            if future.done()
        }

    def release(self, ranks):
        """
        Free ranks from what they wait for and interrupt their cells. Does not wait.

        Returns:
            dict[int, Future]: The answer of each, which has `RankAgent.state` as its "answer".
        """
        return self._note(self._request(ranks, "release_request"))

    def wake(self, ranks):
        """
        Wake ranks that were released and sleep on. Does not wait.

        Returns:
            dict[int, Future]: The answer of each, which has `RankAgent.wake` as its "answer".
        """
        return self._note(self._request(ranks, "wake_request"))

    def _note(self, futures):
        self._releases += [(r, identity_of(self._client, r), f) for r, f in futures.items()]
        return futures

    def settle(self):
        """
        Wait until every release was answered, so that none can cut a group that is yet to come.

        A rank that died meanwhile answers no more.
        """
        time_limit = LoadAwareTimeout(clocks.RELEASE_ANSWER_S, lambda: self.pids(self._client.ids))
        while self._unanswered() and not time_limit.is_over:
            wait([future for _, _, future in self._releases], timeout=clocks.CONTROL_POLL_S)
        self._releases.clear()

    def _unanswered(self):
        self._releases = [
            (rank, uuid, future)
            for rank, uuid, future in self._releases
            if not future.done() and identity_of(self._client, rank) == uuid
        ]
        return self._releases

    def pids(self, ranks):
        """
        Return the process ids of those through whom a word of some ranks comes to us.
        """
        known = [self._supervisor.pids.get(rank) for rank in ranks]
        return [pid for pid in (self._supervisor.controller_pid, *known) if pid is not None]

    def cut(self, ranks):
        """
        Cut the sockets of ranks that do not answer, from outside.
        """
        if ranks and self._has_supervisor:
            self._supervisor.order("cut", ranks=list(ranks), spared_ports=self.controller_ports)

    @property
    def controller_ports(self):
        """
        TCP ports on which the controller serves the ranks; none if it listens in a folder.
        """
        path = self._cluster.controller.connection_files["engine"]
        with open(path) as f:
            info = json.load(f)
        if not info["interface"].startswith("tcp:"):
            return []
        ports = [info[key] for key in _CHANNELS]
        return [*ports, *info["broadcast"]]

    def _request(self, ranks, request):
        client = self._client
        identities = {rank: identity_of(client, rank) for rank in list(ranks)}
        return {
            rank: send_control(client, uuid, request, {})
            for rank, uuid in identities.items()
            if uuid is not None
        }
