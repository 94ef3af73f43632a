"""
The kernel's connection to the rank agents: it requests snapshots and releases during a cell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_lessons.private.ipyparallel_client import identity_of, send_control
from ddp_lessons.ranks.diagnosis.native_stacks import parse_stacks
from ddp_lessons.ranks.messages.agent_requests import (
    RELEASE_REQUEST,
    SNAPSHOT_REQUEST,
    STATE_REQUEST,
    WAKE_REQUEST,
)
from ddp_lessons.ranks.messages.orders import CutSockets
from ddp_lessons.ranks.messages.snapshot import AgentState, RankSnapshot
from ddp_lessons.ranks.messages.stack_files import STACK_SIGNAL, stack_file
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout
from ddp_lessons.ranks.system.processes import waits_on_lock

if TYPE_CHECKING:
    from ipyparallel import Client

    from ddp_lessons.ranks.kernel.launchers.supervised import RanksCluster
    from ddp_lessons.ranks.kernel.supervisor_client import SupervisorClient

_CHANNELS = ("registration", "control", "mux", "task", "iopub", "hb_ping", "hb_pong")


class AgentClient:
    """
    Requests to the rank agents, sent over ipyparallel's control channel, which no cell can block.

    Args:
        supervisor: The SupervisorClient.
        cluster: ipyparallel's cluster.
        client: ipyparallel's client.
        is_supervised: Whether the supervisor is the ranks' parent.
    """

    def __init__(
        self,
        supervisor: SupervisorClient,
        cluster: RanksCluster,
        client: Client,
        is_supervised: bool,
    ) -> None:
        self._supervisor = supervisor
        self._cluster = cluster
        self._client = client
        self._has_supervisor = is_supervised
        # (rank, id of its engine, future) of unanswered ones
        self._releases: list[tuple[int, str | None, Future[Any]]] = []

    def ask_snapshots(self, ranks: Iterable[int]) -> dict[int, Future[Any]]:
        """
        Request a snapshot of each rank. Do not wait for the replies.

        Returns:
            dict[int, Future]: The reply of each rank, which `snapshot_in` reads.
        """
        return self._request(ranks, SNAPSHOT_REQUEST)

    def ask_state(self, ranks: Iterable[int]) -> dict[int, Future[Any]]:
        """
        Request the state of each rank, which changes nothing there. Do not wait for the replies.

        Returns:
            dict[int, Future]: The reply of each rank, which `state_in` reads.
        """
        return self._request(ranks, STATE_REQUEST)

    def snapshots(self, ranks: Collection[int]) -> dict[int, RankSnapshot]:
        """
        Request snapshots of idle ranks, and wait for them.

        A load-aware timeout ends the wait, so a rank that only lacks a core has time to answer.

        Returns:
            dict[int, RankSnapshot]: The snapshot of each rank that answered.
        """
        futures = self.ask_snapshots(ranks)
        time_limit = LoadAwareTimeout(clocks.IDLE_ANSWER_S, lambda: self.pids(ranks))
        poll_s = clocks.CONTROL_POLL_S
        while wait(futures.values(), timeout=poll_s).not_done and not time_limit.is_over:
            pass
        return {
            rank: snapshot_in(future.result()) for rank, future in futures.items() if future.done()
        }

    def release(self, ranks: Iterable[int]) -> dict[int, Future[Any]]:
        """
        Release ranks from their waits and interrupt their cells. Do not wait for the replies.

        Returns:
            dict[int, Future]: The reply of each rank. The "answer" in its "content" is what
            `RankAgent.release` returns.
        """
        return self._note(self._request(ranks, RELEASE_REQUEST))

    def wake(self, ranks: Iterable[int]) -> dict[int, Future[Any]]:
        """
        Wake ranks that were released and still sleep. Do not wait for the replies.

        Returns:
            dict[int, Future]: The reply of each rank. The "answer" in its "content" is what
            `RankAgent.wake` returns.
        """
        return self._note(self._request(ranks, WAKE_REQUEST))

    def _note(self, futures):
        self._releases += [(r, identity_of(self._client, r), f) for r, f in futures.items()]
        return futures

    def settle(self) -> None:
        """
        Wait until every release was answered, so that no late release can cut the next group.

        A rank that has died meanwhile cannot answer, and is not waited for.
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

    def pids(self, ranks: Iterable[int]) -> list[int]:
        """
        Return the process ids of the controller and some ranks, through which their replies pass.
        """
        known = [self._supervisor.pids.get(rank) for rank in ranks]
        return [pid for pid in (self._supervisor.controller_pid, *known) if pid is not None]

    def cut(self, ranks: Collection[int]) -> None:
        """
        Have the supervisor cut the sockets of ranks whose agents do not answer.
        """
        if ranks and self._has_supervisor:
            self._supervisor.order(CutSockets(list(ranks), self.controller_ports))

    @property
    def controller_ports(self) -> list[int]:
        """
        The TCP ports on which the controller serves the ranks; empty if it has sockets in a folder.
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


def snapshot_in(reply: Mapping[str, Any]) -> RankSnapshot:
    """
    Return the RankSnapshot in a rank agent's reply.
    """
    return RankSnapshot.from_message(reply["content"]["answer"])


def state_in(reply: Mapping[str, Any]) -> AgentState:
    """
    Return the AgentState in a rank agent's reply.
    """
    return AgentState(**reply["content"]["answer"])


def read_stack_file(folder: Path | str, rank: int) -> str:
    """
    Return all that a rank has written to its stack file; "" if it has no such file.

    Args:
        folder: The runtime folder of the ranks.
        rank: The rank, which may have died.
    """
    try:
        return stack_file(folder, rank).read_text(errors="replace")
    except OSError:
        return ""


def snapshot_from_outside(
    supervisor: SupervisorClient,
    rank: int,
    source_line: Callable[[int], str],
    may_interrupt_sleep: bool,
) -> RankSnapshot | None:
    """
    Return the snapshot of a rank that cannot answer because C code holds the GIL.

    A signal makes faulthandler's handler in the rank write its stacks to a file, without the GIL.

    Args:
        supervisor: The SupervisorClient.
        rank: The silent rank.
        source_line: Function from a line number, from 1, to the text of that line of the cell.
        may_interrupt_sleep: Whether to send the signal even if it would cut short a sleep in C.

    Returns:
        RankSnapshot or None: None if the rank did not write in time, or if the signal was not sent.
    """
    pid = supervisor.pids.get(rank)
    if pid is None or not (may_interrupt_sleep or waits_on_lock(pid)):
        return None
    path = stack_file(supervisor.folder, rank)
    before = path.stat().st_size if path.exists() else 0
    supervisor.signal_ranks([rank], STACK_SIGNAL)
    time_limit = LoadAwareTimeout(clocks.STACK_ANSWER_S, lambda: [supervisor.supervisor_pid, pid])
    found = None
    while found is None and not time_limit.is_over:
        time.sleep(clocks.STACK_POLL_S)
        with open(path) as f:
            f.seek(before)
            found = parse_stacks(f.read())
    if found is None:
        return None
    line, function, call = found
    return RankSnapshot(
        rank=rank, busy=True, line=line, code=source_line(line), call=call, function=function
    )
