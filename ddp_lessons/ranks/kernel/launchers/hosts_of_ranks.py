"""
The hosts of ranks: which rank runs on which host, and which host is silent.
"""

from concurrent.futures import wait

from ddp_lessons.private.ipyparallel_client import (
    identity_of,
    notification_handlers,
    send_control,
)
from ddp_lessons.ranks.system import clocks


def ask_hosts_of_ranks(client, ranks, folder, time_limit):
    """
    Ask ranks for their hosts, until all have answered, a rank has died, or the time is over.

    Call this before any message is sent that only the same versions of Python can read.

    Args:
        client: ipyparallel's client.
        ranks: The ranks to ask, which have registered.
        folder: Path of a file of this kernel. Each rank answers whether it sees the file.
        time_limit: A LoadAwareTimeout.

    Returns:
        dict[int, dict]: The `host_info` of each rank that has answered.
    """
    asked: dict = {rank: [] for rank in ranks}
    answers: dict = {}
    while len(answers) < len(asked) and not time_limit.is_over and set(ranks) <= set(client.ids):
        for rank in asked.keys() - answers.keys():
            # Ask again: a request that is sent before the rank's control channel is open is lost.
            identity = identity_of(client, rank)
            if identity is not None:
                request = send_control(client, identity, "host_info_request", {"folder": folder})
                asked[rank].append(request)
        requests = [request for sent in asked.values() for request in sent]
        wait(requests, timeout=clocks.HOME_ASK_EVERY_S)
        for rank, sent in asked.items():
            done = [request for request in sent if request.done() and not request.exception()]
            if done:
                answers[rank] = done[0].result()["content"]["answer"]
    return answers


def note_silent_ranks(client, silent):
    """
    Have each rank that is given up, because its host does not answer, added to the set `silent`.

    A rank is added before its requests fail, so that the error about them can name the cause.
    """
    handlers = notification_handlers(client)
    forget = handlers["unregistration_notification"]

    def note_and_forget(message):
        if message["content"].get("is_silent"):
            silent.add(int(message["content"]["id"]))
        forget(message)

    handlers["unregistration_notification"] = note_and_forget


def short_name(host):
    """
    Return a host's name without its domain, because only some programs add the domain.
    """
    return host.partition(".")[0]
