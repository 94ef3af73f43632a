"""
A simulated world: one process plays all ranks, until they end or wait for ever.
"""

import threading

import pytest
import torch
import torch.distributed as dist

from ddp_lessons.checks.kit.on_rank.simulated_world import simulate_world
from ddp_lessons.process_group import join_group, leave_group
from ddp_lessons.trace import trace

WORLD_SIZE = 5


@pytest.fixture(autouse=True)
def group(tmp_path):
    """
    Join a group of this process alone, and assert that it is the default group again afterwards.
    """
    join_group(tmp_path / "store", 0, 1)
    yield
    assert dist.get_world_size() == 1
    leave_group()


def _around(rank):
    """
    Send this rank's number to the right, and return the number from the left.
    """
    arrived = torch.empty(1)
    handle = dist.irecv(arrived, src=(rank - 1) % dist.get_world_size())
    dist.send(torch.tensor([float(rank)]), dst=(rank + 1) % dist.get_world_size())
    handle.wait()
    return arrived.item()


def _in_a_chain(rank):
    """
    Add 1 to the number from the left, and send it to the right.
    """
    number = torch.zeros(1)
    if rank > 0:
        dist.recv(number, src=rank - 1)
    number += 1
    if rank < dist.get_world_size() - 1:
        dist.send(number, dst=rank + 1)
    return number.item()


def _to_rank_0(rank):
    """
    Send this rank's number to rank 0, which receives them in the order of arrival.
    """
    if rank > 0:
        dist.send(torch.tensor([rank]), dst=0)
        return []
    place = torch.zeros(1, dtype=torch.int64)
    senders = [dist.recv(place) for _ in range(dist.get_world_size() - 1)]
    return [*senders, place.item()]


@pytest.mark.parametrize(
    ("play", "expected"),
    [
        (_around, [4.0, 0.0, 1.0, 2.0, 3.0]),
        (_in_a_chain, [1.0, 2.0, 3.0, 4.0, 5.0]),
        (_to_rank_0, [[1, 2, 3, 4, 4], [], [], [], []]),
    ],
)
def test_messages_arrive(play, expected):
    """
    Messages arrive with the values that a real world would deliver.
    """
    assert simulate_world(WORLD_SIZE, play) == (expected, {})


def test_a_trace_tells_of_messages_and_waits():
    """
    A trace records messages and waits as in a real world, because the check judges the trace.
    """

    def play(rank):
        with trace() as events:
            _around(rank)
        return [(event.name, event.peer, event.index, event.wait_index) for event in events]

    kept, stops = simulate_world(3, play)
    assert kept[1] == [("recv", 0, 0, 3), ("send", 2, 1, 2)]
    assert not stops


def test_a_world_that_stands_still_says_who_waits_for_what():
    """
    If ranks wait for ever, each is reported with its call. Here the tags of a message differ.
    """

    def play(rank):
        if rank == 1:
            dist.send(torch.zeros(1), dst=2, tag=7)
        if rank == 2:
            dist.recv(torch.zeros(1), src=1)
        return rank

    kept, stops = simulate_world(3, play)
    assert kept == [0, None, None]
    assert {rank: str(end) for rank, end in stops.items()} == {
        1: "send to rank 2",
        2: "recv from rank 1",
    }


def test_the_first_error_ends_the_play():
    """
    The first error ends the play. A number that is no rank's is refused, as a real group does.
    """
    kept, stops = simulate_world(3, lambda rank: dist.send(torch.zeros(1), dst=rank + 1))
    assert kept == [None] * 3
    assert str(stops[2]) == "there is no rank 3 in a group of 3"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_sends_in_a_thread_is_not_played():
    """
    A rank that sends in a thread is not simulated: the order of its calls varies, so the calls
    cannot be repeated from the start.
    """

    def play(rank):
        thread = threading.Thread(target=dist.send, args=(torch.zeros(1), (rank + 1) % 3))
        thread.start()
        dist.recv(torch.zeros(1), src=(rank - 1) % 3)
        thread.join()

    assert simulate_world(3, play) is None
