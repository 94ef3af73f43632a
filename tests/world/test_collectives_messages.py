"""
Messages of the collectives: their numbers follow from the algorithms, and they may have any size.
"""

import math
import time

import pytest
import torch
import torch.distributed as dist
from collective_values import ALGORITHMS, WIDER
from counting import counted_sends
from worlds import RankFailed, run_world

from ddp_lessons.collectives import Peers, log_rounds, naive


def _messages_of_each(rank, w, num_bytes):
    tensor = torch.zeros(num_bytes, dtype=torch.uint8)
    parts = [torch.zeros_like(tensor) for _ in range(w)]
    outputs = [torch.zeros_like(tensor) for _ in range(w)]
    root = rank == 0
    counts = {}
    for name, calls in (("naive", naive), ("log_rounds", log_rounds)):
        for call, args in (
            ("broadcast", (tensor,)),
            ("scatter", (tensor, parts if root else None)),
            ("gather", (tensor, parts if root else None)),
            ("reduce", (tensor,)),
            ("all_reduce", (tensor,)),
            ("all_gather", (parts, tensor)),
            ("reduce_scatter", (tensor, parts)),
            ("barrier", ()),
        ):
            with counted_sends() as sent:
                getattr(calls, call)(*args)
            counts[name, call] = (sent.num_messages, sent.num_bytes)
    with counted_sends() as sent:
        log_rounds.all_to_all(outputs, parts)
    counts["log_rounds", "all_to_all"] = (sent.num_messages, sent.num_bytes)
    return counts


@pytest.mark.parametrize("world_size", WIDER)
def test_collectives_send_what_their_algorithms_say(world_size):
    """
    In the hub algorithm the root's traffic grows with the number of ranks. In rounds each rank
    sends about log2(w) messages.
    """
    w, size = world_size, 12
    counts = run_world(world_size, _messages_of_each, size)
    rounds = math.ceil(math.log2(w))
    hub, leaf = counts[0], counts[-1]
    for call in ("broadcast", "scatter", "all_reduce"):
        assert hub["naive", call] == (w - 1, (w - 1) * size)
    assert hub["naive", "all_gather"] == (w - 1, (w - 1) * w * size)
    for call, sent_bytes in (("gather", size), ("reduce", size), ("reduce_scatter", w * size)):
        assert leaf["naive", call] == ((1, sent_bytes) if w > 1 else (0, 0))
    assert hub["log_rounds", "broadcast"] == (rounds, rounds * size)
    assert hub["log_rounds", "scatter"] == (rounds, (w - 1) * size)
    for call in ("broadcast", "reduce"):  # a tree has w - 1 branches
        assert sum(of_rank["log_rounds", call][0] for of_rank in counts) == w - 1
    for of_rank in counts:
        assert of_rank["log_rounds", "reduce"][0] <= 1
        assert of_rank["log_rounds", "all_gather"] == (rounds, (w - 1) * size)
        assert of_rank["log_rounds", "reduce_scatter"] == (rounds, (w - 1) * size)
        assert of_rank["log_rounds", "barrier"] == (rounds, rounds)
        # Part j is sent as often as j has ones in binary. Before the parts, the table of sizes is
        # sent: 2 w integers of 8 bytes.
        hops = sum(j.bit_count() for j in range(w))
        table_bytes = (w - 1) * 2 * w * 8
        assert of_rank["log_rounds", "all_to_all"] == (2 * rounds, hops * size + table_bytes)
    paired = 1 << (w.bit_length() - 1)
    for rank, of_rank in enumerate(counts):
        if rank >= paired:
            num_messages = 1
        else:
            num_messages = int(math.log2(paired)) + (rank + paired < w)
        assert of_rank["log_rounds", "all_reduce"] == (num_messages, num_messages * size)


def _large_both_ways(rank, w, num_bytes):
    tensor = torch.full((num_bytes // 4,), rank, dtype=torch.int32)
    peers = Peers()
    arrived = torch.empty_like(tensor)
    peers.exchange(tensor, (rank + 1) % w, arrived, (rank - 1) % w)
    assert (arrived == (rank - 1) % w).all()
    for calls in ALGORITHMS:
        total = tensor.clone()
        calls.all_reduce(total)
        assert (total == w * (w - 1) // 2).all()
        rows = list(tensor.clone().tensor_split(w))
        parts = [torch.empty_like(rows[rank]) for _ in range(w)]
        calls.all_to_all(parts, rows)
        assert all((part == other).all() for other, part in enumerate(parts))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_exchange_of_large_messages_ends(world_size):
    """
    Several MiB in both directions fit in no socket's buffer. The exchange ends only because each
    rank receives while it sends.
    """
    run_world(world_size, _large_both_ways, 12 * 4 * 171_000)


def _send_first(rank, w, num_bytes):
    tensor = torch.zeros(num_bytes, dtype=torch.uint8)
    dist.send(tensor, (rank + 1) % w)
    dist.recv(tensor, (rank - 1) % w)


def test_exchange_by_blocking_sends_never_ends():
    """
    A naive exchange by blocking sends hangs: all ranks send, and none receives. `exchange` exists
    to prevent this.
    """
    with pytest.raises(RankFailed, match=r"ranks \[0, 1\] of 2 were not done in time"):
        run_world(2, _send_first, 8 << 20, timeout_s=2.0)


def _own_messages(rank, w):
    mine = torch.tensor([100 + rank])
    arrived = torch.zeros(1, dtype=torch.int64)
    works = [dist.irecv(arrived, (rank - 1) % w), dist.isend(mine, (rank + 1) % w)]
    total = torch.ones(1)
    log_rounds.all_reduce(total)
    for work in works:
        work.wait()
    return arrived.item(), total.item()


def test_collectives_leave_the_callers_messages_alone():
    """
    A message of the caller that is on its way when a collective starts must not be received by that
    collective.
    """
    assert run_world(3, _own_messages) == [(102, 3.0), (100, 3.0), (101, 3.0)]


def _barrier_times(rank, w, name):
    calls = naive if name == "naive" else log_rounds
    calls.barrier()
    if rank == w - 1:
        time.sleep(0.2)  # the last rank comes late; that delay is measured
    came = time.monotonic()
    calls.barrier()
    return came, time.monotonic()


@pytest.mark.parametrize("name", ["naive", "log_rounds"])
def test_barrier_waits_for_the_last(name):
    """
    No rank leaves the barrier before all have come. All ranks run on one machine, so they have one
    clock.
    """
    times = run_world(4, _barrier_times, name)
    assert min(left for _, left in times) >= max(came for came, _ in times)
