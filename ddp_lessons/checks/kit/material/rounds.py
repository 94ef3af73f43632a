"""
Messages from rank to rank: where they start, and in which round each of them moves.
"""

import torch
import torch.distributed as dist

from ddp_lessons.trace import match


def sending_device(here):
    """
    Return where messages start: Gloo sends from the CPU's memory, NCCL from the GPU's.
    """
    return here.device if dist.get_backend() == "nccl" else torch.device("cpu")


def rounds_in_turns(world_size):
    """
    Return how many rounds it takes if each rank gives its neighbour a message, and waits for it.

    Even ranks send first, odd ones receive first. An odd circle has two even ranks side by side.
    """
    return 2 + world_size % 2


def rounds_of_sends(traces):
    """
    Return for each rank in which round each of its messages moves, counted from 1.

    A message moves when both sides have made their call. A rank makes a call when all messages have
    moved that it waited for before it, sent and received ones. It sends one message a round.

    Args:
        traces: One list of events a rank. Every message in it arrived.
    """
    sides = {}
    for met in match(traces):
        both = list(met.values())
        if any(event.is_send for event in both) and any(event.is_receive for event in both):
            sides.update({(event.rank, event.index): both for event in both})
    known: dict = {}

    def round_of(event):
        both = sides.get((event.rank, event.index), [event])
        key = min((side.rank, side.index) for side in both)
        if key not in known:
            known[key] = 0  # of messages that wait for each other: a backend had buffered them
            before = [earlier for side in both for earlier in _moved_before(side, traces)]
            known[key] = 1 + max(map(round_of, before), default=0)
        return known[key]

    return [[round_of(event) for event in events if event.is_send] for events in traces]


def _moved_before(side, traces):
    for event in traces[side.rank]:
        if event.thread != side.thread:
            continue
        is_waited_for = event.wait_index is not None and event.wait_index < side.index
        is_earlier_send = event.is_send and side.is_send and event.index < side.index
        if (event.is_send or event.is_receive) and (is_waited_for or is_earlier_send):
            yield event
