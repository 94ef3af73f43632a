"""
The predicted costs equal those of the library: messages and bytes of each rank, counted on real
ranks.
"""

import pytest
import torch
from worlds import run_world

from ddp_lessons import collectives, ring
from ddp_lessons.costs import rank_costs, schedule
from ddp_lessons.trace import gather, trace, traffic

LENGTHS = (0, 1, 7, 12)
"""
Elements of a rank's tensor: none, fewer than ranks, not divisible, divisible by 1 to 4.
"""


def _calls(calls, num, rank, world_size):
    def tensor():
        return torch.ones(num)

    def tensors():
        return [tensor() for _ in range(world_size)]

    root = world_size - 1
    return {
        "broadcast": lambda: calls.broadcast(tensor(), root),
        "scatter": lambda: calls.scatter(tensor(), tensors() if rank == root else None, root),
        "gather": lambda: calls.gather(tensor(), tensors() if rank == root else None, root),
        "reduce": lambda: calls.reduce(tensor(), root),
        "all_reduce": lambda: calls.all_reduce(tensor()),
        "reduce_scatter": lambda: calls.reduce_scatter(tensor(), tensors()),
        "all_gather": lambda: calls.all_gather(tensors(), tensor()),
    }


RUNS = {
    ("naive", "hub"): ("broadcast", "scatter", "gather", "reduce", "all_reduce", "reduce_scatter",
                       "all_gather"),
    ("log_rounds", "tree"): ("broadcast", "scatter", "gather", "reduce"),
    ("log_rounds", "recursive_doubling"): ("all_reduce",),
    ("log_rounds", "bruck"): ("reduce_scatter", "all_gather"),
    ("textbook", "ring"): ("all_reduce", "reduce_scatter", "all_gather"),
}  # fmt: skip
"""
The library's name of each algorithm, the name in `costs`, and the collectives that both have.
"""


def _count_all(rank, world_size):
    counted = {}
    for (library, algorithm), names in RUNS.items():
        calls = getattr(ring if library == "textbook" else collectives, library)
        for num in LENGTHS:
            for name in names:
                call = _calls(calls, num, rank, world_size)[name]
                with trace() as events:
                    call()
                counted[name, algorithm, num] = traffic(gather(events))[rank]
    return counted


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_rank_costs_are_what_the_trace_counts(world_size):
    """
    Costs are equal to the counts, not only near, on every rank and for every length. The root of a
    rooted collective is the last rank.
    """
    counts = run_world(world_size, _count_all)
    assert len(counts[0]) == len(LENGTHS) * sum(map(len, RUNS.values()))
    for collective, algorithm, num in counts[0]:
        rooted = collective in ("broadcast", "scatter", "gather", "reduce")
        one_tensor = collective in ("broadcast", "reduce", "all_reduce")
        plan = schedule(
            collective,
            algorithm,
            world_size,
            num if one_tensor else num * world_size,
            root=world_size - 1 if rooted else 0,
        )
        for cost, ranks_counts in zip(rank_costs(plan, 4), counts, strict=True):
            seen = ranks_counts[collective, algorithm, num]
            assert (cost.num_sent, cost.sent_bytes, cost.num_received, cost.received_bytes) == (
                seen.num_sent, seen.sent_bytes, seen.num_received, seen.received_bytes
            ), (collective, algorithm, num, cost.rank)  # fmt: skip


def _count_to_all(rank, world_size):
    rows = {}
    for library in ("naive", "log_rounds"):
        calls = getattr(collectives, library)
        inputs, outputs = ([torch.ones(6) for _ in range(world_size)] for _ in range(2))
        with trace() as events:
            calls.all_to_all(outputs, inputs)
        rows[library] = traffic(gather(events))[rank]
        with trace() as events:
            calls.barrier()
        rows[f"{library} barrier"] = traffic(gather(events))[rank]
    return rows


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_rank_costs_of_all_to_all_and_barrier_are_what_the_trace_counts(world_size):
    """
    The counts of all-to-all and barrier equal the costs. The library's all-to-all first sends the
    lengths to all ranks.

        The lengths are an all-gather: two integers of eight bytes for each pair of ranks.
    """
    counts = run_world(world_size, _count_to_all)
    for library, algorithm, barrier in (
        ("naive", "hub", "hub"),
        ("log_rounds", "bruck", "dissemination"),
    ):
        plan = schedule("all_to_all", algorithm, world_size, 6 * world_size)
        lengths = schedule("all_gather", algorithm, world_size, 2 * world_size**2)
        rests = schedule("barrier", barrier, world_size)
        for rank in range(world_size):
            parts = [rank_costs(plan, 4)[rank], rank_costs(lengths, 8)[rank]]
            seen = counts[rank][library]
            assert seen.num_sent == sum(part.num_sent for part in parts)
            assert seen.sent_bytes == sum(part.sent_bytes for part in parts)
            assert seen.received_bytes == sum(part.received_bytes for part in parts)
            seen = counts[rank][f"{library} barrier"]
            cost = rank_costs(rests, 1)[rank]
            assert (seen.num_sent, seen.num_received) == (cost.num_sent, cost.num_received)


def _count_pipelined(rank, world_size):
    numbers = torch.ones(8_000_001)  # 30.5 MiB: several segments a chunk
    with trace() as events:
        ring.pipelined.all_reduce(numbers)
    return traffic(gather(events))[rank].sent_bytes


@pytest.mark.parametrize("world_size", [2, 3])
def test_pipelined_ring_sends_the_bytes_of_the_ring(world_size):
    """
    Segments increase the number of messages, but not the bytes.
    """
    plan = schedule("all_reduce", "ring", world_size, 8_000_001)
    assert run_world(world_size, _count_pipelined) == [c.sent_bytes for c in rank_costs(plan, 4)]
