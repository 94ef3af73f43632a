"""
Measurements of lesson 03: chunks at each step, seconds of a message, bytes over TCP.
"""

import socket
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from worlds import run_world

from ddp_lessons.collectives import Peers
from ddp_lessons.costs import schedule
from ddp_lessons.errors import BadInput
from ddp_lessons.pictures import steps_from_digits
from ddp_lessons.ring import chunks_at_each_step, one_way_s, steps, tcp_bytes_received, textbook
from ddp_lessons.trace import trace


def _watch(rank, w):
    class BatchedPeers(Peers):  # messages start as in the lesson's `exchange`
        def exchange(self, *message):
            for work in self._batch(*message):
                work.wait()

    def all_reduce_chunks(chunks):
        steps.reduce_scatter_chunks(chunks, dist.ReduceOp.SUM, BatchedPeers())
        steps.all_gather_chunks(chunks, BatchedPeers())

    before = dist.batch_isend_irecv
    chunks = torch.full((w,), 10**rank).tensor_split(w)
    with trace() as events:
        seen = chunks_at_each_step(all_reduce_chunks, chunks)
    assert dist.batch_isend_irecv is before
    return seen, [event.peer for event in events if event.is_receive]


def test_something_other_than_a_loop_is_refused():
    """
    A value in place of a function, as of `ring_reduce_scatter(chunks)`, is refused in a sentence.
    """
    with pytest.raises(BadInput, match=r"^No loop of a ring: expected a function .* \(got None\)"):
        chunks_at_each_step(None, torch.zeros(4).tensor_split(4))


def _watch_as_in_0_1_0(rank, w):
    with pytest.warns(FutureWarning, match=r"Write chunks_at_each_step\(loop, chunks\)") as warned:
        seen = chunks_at_each_step(steps, torch.full((w,), 10**rank), group=None)
    return seen, [Path(one.filename).name for one in warned]


@pytest.mark.parametrize("world_size", [1, 4])
def test_the_call_of_an_earlier_version_works_and_names_the_new_one(world_size):
    """
    Learners keep edited copies of old lessons. The call of lesson 03 in version 0.1.0 works for one
    version more, and its warning, which names the new call, points to the learner's line.
    """
    today = [seen for seen, _ in run_world(world_size, _watch)]
    for rank, (seen, files) in enumerate(run_world(world_size, _watch_as_in_0_1_0)):
        assert seen == today[rank]
        assert files == [Path(__file__).name]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_steps_seen_on_ranks_are_those_of_the_schedule(world_size):
    """
    The lesson's picture is drawn from what the ranks held at each step, and shows the ring of the
    papers.
    """
    seen, sources = zip(*run_world(world_size, _watch), strict=True)
    holdings, moves = steps_from_digits(seen, sources)
    assert (holdings, moves) == steps_from_digits(seen)  # the senders are left neighbours
    foretold = schedule("all_reduce", "ring", world_size, world_size)
    assert holdings == [
        [[sorted(parts) for parts in row] for row in held] for held in foretold.holdings()
    ]
    assert len(moves) == 2 * (world_size - 1)
    for step in moves:
        assert [(sender, receiver) for sender, receiver, _ in step] == [
            ((rank - 1) % world_size, rank) for rank in range(world_size)
        ]
        assert all(len(chunks) == 1 for *_, chunks in step)


def _time(rank, w):
    measured_s = [one_way_s(num_bytes, num_tries=5) for num_bytes in (0, 1, 1000)]
    ticks_s = [0.0, 8.0, 10.0, 13.0, 20.0, 25.0]  # three tries, of 8, 3 and 5 seconds
    with mock.patch("ddp_lessons.ring.watching.time.perf_counter", side_effect=ticks_s):
        return measured_s, one_way_s(1, num_tries=3)


@pytest.mark.parametrize("world_size", [2, 3])
def test_one_way_takes_half_of_the_fastest_way_there_and_back(world_size):
    """
    A message takes half of the fastest round trip. Ranks other than the first two also make the
    call, because a cell runs on all ranks.
    """
    for measured_s, by_the_ticks_s in run_world(world_size, _time):
        assert all(seconds > 0 for seconds in measured_s)
        assert by_the_ticks_s == 1.5


def _receive(rank, w):
    large, before = torch.zeros(1_000_000), tcp_bytes_received()
    textbook.all_reduce(large)
    share = (tcp_bytes_received() - before) / large.nbytes
    dist.barrier()  # a rank that leaves closes the connection whose bytes are counted
    return share


def test_bytes_over_tcp_are_those_of_the_ring():
    """
    The bytes of torch's own all-reduce, which the operating system counts, are those of a ring.
    """
    assert run_world(4, _receive) == pytest.approx([1.5] * 4, abs=0.01)


def test_bytes_over_tcp_leave_other_sockets_out():
    """
    Only TCP connections are counted, although a kernel has sockets of many kinds.
    """
    before = tcp_bytes_received()
    one, other = socket.socketpair()
    with one, other, socket.socket(type=socket.SOCK_DGRAM):
        assert tcp_bytes_received() == before
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as here:
        there, _ = server.accept()
        with there:
            there.sendall(bytes(1000))
            assert here.recv(1000, socket.MSG_WAITALL) == bytes(1000)
            assert tcp_bytes_received() == before + 1000


def test_bytes_over_tcp_refuse_a_system_that_does_not_tell():
    """
    A system without these counters is refused, because a wrong number would be worse than none.
    """
    assert sys.platform in ("linux", "darwin")
    with pytest.raises(BadInput, match=r"Nobody counts.*win32"):
        tcp_bytes_received("win32")
