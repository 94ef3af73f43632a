"""
How a check counts the rounds in which messages move.
"""

from collections import Counter

import pytest

from ddp_lessons.checks.kit.shared.message_rounds import rounds_in_turns, rounds_of_sends
from ddp_lessons.trace.events import MESSAGE, Event


def traces_of(*ranks):
    """
    Return the events of ranks. Each rank is a list of calls: (name, peer), or the index of a call
    to wait for.

    A send or recv waits for itself, as dist.send does. An isend or irecv is waited for by its index
    among the calls of its rank.
    """
    return [_events_of(rank, calls) for rank, calls in enumerate(ranks)]


def _events_of(rank, calls):
    events, numbers, index = [], Counter(), 0
    for call in calls:
        if isinstance(call, int):
            events[call].wait_index = index
            index += 1
            continue
        name, peer = call
        kind = name.removeprefix("i")
        event = Event(MESSAGE, kind, rank, index, start_ns=0, peer=peer, tag=0)
        event.sequence = numbers[kind, peer]
        numbers[kind, peer] += 1
        index += 1
        if name == kind:
            event.wait_index = index
            index += 1
        events.append(event)
    return events


def circle(world_size, sends_first):
    """
    Return the traces of ranks that send to the right. Those that `sends_first` accepts send before
    they receive.
    """
    ranks = []
    for rank in range(world_size):
        both = [("send", (rank + 1) % world_size), ("recv", (rank - 1) % world_size)]
        ranks.append(both if sends_first(rank) else both[::-1])
    return traces_of(*ranks)


def test_all_that_start_without_waiting_move_in_one_round():
    """
    Messages that all start without waiting move in one round, as in the expected answer.
    """
    ranks = [[("irecv", (rank - 1) % 4), ("send", (rank + 1) % 4), 0] for rank in range(4)]
    assert rounds_of_sends(traces_of(*ranks)) == [[1]] * 4


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_even_ranks_first_take_the_rounds_that_a_check_allows(world_size):
    """
    If even ranks send first, the rounds are as many as the check allows and the task's text
    promises.
    """
    rounds = rounds_of_sends(circle(world_size, lambda rank: rank % 2 == 0))
    assert max(map(max, rounds)) == rounds_in_turns(world_size)


@pytest.mark.parametrize("sends_first", [lambda rank: rank > 0, lambda rank: rank == 0])
def test_a_chain_of_waits_counts_from_either_end(sends_first):
    """
    A chain of waits is counted from either end: a blocking send waits for its receiver as a
    receiver waits for its sender.
    """
    rounds = rounds_of_sends(circle(4, sends_first))
    assert sorted(number for (number,) in rounds) == [1, 2, 3, 4]


def test_a_rank_sends_one_message_a_round():
    """
    A rank sends one message in a round, also if it starts all at once, because it has one link.
    """
    traces = traces_of(
        [("isend", 1), ("isend", 2), ("isend", 3), 0, 1, 2], *([("recv", 0)] for _ in range(3))
    )
    assert rounds_of_sends(traces) == [[1, 2, 3], [], [], []]


def test_messages_that_wait_for_each_other_come_to_an_end():
    """
    Messages in a circle of waits are counted too: a backend that buffers can send them, although
    Gloo cannot.
    """
    rounds = rounds_of_sends(circle(3, lambda rank: True))
    assert all(number >= 1 for (number,) in rounds)
