"""
What is known of the hosts of ranks: who is where, and who is silent.
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
    Ask ranks where they are, until each has answered, or has died, or patience is over: before
    anything is sent to them that only the same versions can read.

    Args:
        client: ipyparallel's client.
        ranks: The ranks to ask, which have registered.
        folder: The folder that all of them have to see.
        patience: A LoadAwareTimeout.

    Returns:
        dict[int, dict]: What `host_info` says on each rank that has answered.
    """
    asked: dict = {rank: [] for rank in ranks}
    answers: dict = {}
    while len(answers) < len(asked) and not time_limit.is_over and set(ranks) <= set(client.ids):
        for rank in asked.keys() - answers.keys():
            # Asked again: what is sent while its line is being made reaches nobody.
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
    Have a rank noted in the set `silent` that is dead to us since its host does not answer.

    That is so before its requests fail, so that whoever tells of the failure knows the cause.
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
    Return a host's name without its domain, as some call it so, and some so.
    """
    return host.partition(".")[0]
