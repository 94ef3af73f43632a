"""
The kernel's line to the guards: ask ranks where they are, and free them, while they run a cell.
"""

import json
from concurrent.futures import wait

_CHANNELS = ("registration", "control", "mux", "task", "iopub", "hb_ping", "hb_pong")
_ANSWER_S = 0.3


class Control:
    """
    Requests to the guards, through ipyparallel's control channel, which no cell can block.

    Args:
        keeper: The warden's Keeper.
        cluster: ipyparallel's cluster.
        client: ipyparallel's client.
        has_warden: Whether the warden is the ranks' parent.
    """

    def __init__(self, keeper, cluster, client, has_warden):
        self._keeper = keeper
        self._cluster = cluster
        self._client = client
        self._has_warden = has_warden

    def places(self, ranks, timeout_s=_ANSWER_S):
        """
        Ask ranks where they are.

        Returns:
            dict[int, dict]: `Guard.place` of each rank that answered in time.
        """
        futures = self._request(ranks, "place_request")
        wait(futures.values(), timeout=timeout_s)
        return {
            rank: future.result()["content"]["answer"]
            for rank, future in futures.items()
            if future.done()
        }

    def release_all(self):
        """
        Free all ranks from what they wait for and interrupt their cells. Does not wait.

        The idle ranks let go of their peers too: a rank that holds its interpreter while it waits
        in C++ cannot cut its own sockets, but notices when the other end is cut.
        """
        self._request(self._client.ids, "release_request")

    def cut(self, ranks):
        """
        Cut the sockets of ranks that do not answer, from outside.
        """
        if ranks and self._has_warden:
            self._keeper.order("cut", ranks=list(ranks), spared_ports=self.controller_ports)

    @property
    def controller_ports(self):
        """
        TCP ports on which the controller serves the ranks.
        """
        path = self._cluster.controller.connection_files["engine"]
        with open(path) as f:
            info = json.load(f)
        ports = [info[key] for key in _CHANNELS]
        return [*ports, *info["broadcast"]]

    def _request(self, ranks, request):
        client = self._client
        identities = {rank: client._engines.get(rank) for rank in ranks}
        return {
            rank: client._send(client._control_stream, request, content={}, ident=uuid.encode())
            for rank, uuid in identities.items()
            if uuid is not None
        }
