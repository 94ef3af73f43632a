"""
The hosts of ranks: which rank runs on which host, and which host is silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from ddp_lessons.private.ipyparallel_client import (
    identity_of,
    notification_handlers,
    send_control,
)
from ddp_lessons.ranks.messages.agent_requests import HOST_INFO_REQUEST
from ddp_lessons.ranks.messages.rank_start import HostInfo
from ddp_lessons.ranks.rank.host_info import count_by_host
from ddp_lessons.ranks.system import clocks

if TYPE_CHECKING:
    from ipyparallel import Client

    from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout


def ask_hosts_of_ranks(
    client: Client, ranks: Collection[int], folder: str, time_limit: LoadAwareTimeout
) -> dict[int, HostInfo]:
    """
    Ask ranks for their hosts, until all have answered, a rank has died, or the time is over.

    Call this before any message is sent that only the same versions of Python can read.

    Args:
        client: ipyparallel's client.
        ranks: The ranks to ask, which have registered.
        folder: Path of a file of this kernel. Each rank answers whether it sees the file.
        time_limit: A LoadAwareTimeout.

    Returns:
        dict[int, HostInfo]: The HostInfo of each rank that has answered.
    """
    asked: dict[int, list[Future[Any]]] = {rank: [] for rank in ranks}
    answers: dict[int, HostInfo] = {}
    while len(answers) < len(asked) and not time_limit.is_over and set(ranks) <= set(client.ids):
        for rank in asked.keys() - answers.keys():
            # Ask again: a request that is sent before the rank's control channel is open is lost.
            identity = identity_of(client, rank)
            if identity is not None:
                request = send_control(client, identity, HOST_INFO_REQUEST, {"folder": folder})
                asked[rank].append(request)
        requests = [request for sent in asked.values() for request in sent]
        wait(requests, timeout=clocks.HOST_INFO_EVERY_S)
        for rank, sent in asked.items():
            done = [request for request in sent if request.done() and not request.exception()]
            if done:
                answer = done[0].result()["content"]["answer"]
                answers[rank] = HostInfo.from_message(answer)
    return answers


def note_silent_ranks(client: Client, silent: set[int]) -> None:
    """
    Have each rank that is given up, because its host does not answer, added to the set `silent`.

    A rank is added before its requests fail, so that the error about them can name the cause.
    """
    handlers = notification_handlers(client)
    forget = handlers["unregistration_notification"]

    def note_and_forget(message: dict[str, Any]) -> None:
        if message["content"].get("is_silent"):
            silent.add(int(message["content"]["id"]))
        forget(message)

    handlers["unregistration_notification"] = note_and_forget


def count_ranks_by_host(
    client: Client,
    host_infos: Mapping[int, HostInfo],
    told_before: dict[int, tuple[int, int]],
    replaced_ranks: Collection[int],
) -> None:
    """
    Set LOCAL_RANK and LOCAL_WORLD_SIZE on ranks where they have changed. Wait for the replaced
    ranks only: other ranks may be in a cell, and set them after it.

    Args:
        client: ipyparallel's client.
        host_infos: For each rank its HostInfo.
        told_before: For each rank the two numbers that it has; brought up to date.
        replaced_ranks: Ranks that have new processes.
    """
    counts = Counter(there.host for there in host_infos.values())
    seen: Counter[str] = Counter()
    told = {}
    for rank, there in sorted(host_infos.items()):
        position = seen[there.host], counts[there.host]
        seen[there.host] += 1
        is_news = told_before.get(rank) != position or rank in replaced_ranks
        if is_news and rank in client.ids:
            view = client.direct_view(rank)
            told[rank] = view.apply_async(count_by_host, *position)
            told_before[rank] = position
    wait([told[rank] for rank in replaced_ranks if rank in told], timeout=clocks.HOST_INFO_S)


def short_name(host: str) -> str:
    """
    Return a host's name without its domain, because only some programs add the domain.
    """
    return host.partition(".")[0]
