"""
Costs of collectives: every schedule is executed, and every formula is compared with the count.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_lessons.costs import (
    ALGORITHMS,
    Link,
    chunk_bounds,
    chunk_lengths,
    collective_s,
    critical_path,
    crossover_bytes,
    rank_costs,
    schedule,
    sent_bytes,
)
from ddp_lessons.errors import BadInput

PAIRS = [(collective, name) for collective, names in ALGORITHMS.items() for name in names]
WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)
NO_FORMULA = {
    ("scatter", "tree"), ("gather", "tree"), ("reduce_scatter", "recursive_halving"),
    ("all_gather", "recursive_doubling"), ("all_to_all", "hub"),
}  # fmt: skip
LINK = Link(latency_s=30e-6, bandwidth_bytes_per_s=2e9)


def wanted(collective, world_size, root, num_chunks):
    """
    Return what each rank must hold in each chunk after a collective. None means that any content is
    right.
    """
    ranks, everybody = range(world_size), tuple(range(world_size))
    rows = []
    for rank in ranks:
        row = []
        for chunk in range(num_chunks):
            want = {
                "broadcast": (root,),
                "scatter": (root,) if chunk == rank else None,
                "gather": (chunk,) if rank == root else None,
                "reduce": everybody if rank == root else None,
                "all_reduce": everybody,
                "barrier": everybody,
                "reduce_scatter": everybody if chunk == rank else None,
                "all_gather": (chunk,),
                "all_to_all": (chunk // world_size,) if chunk % world_size == rank else None,
            }[collective]
            row.append(want)
        rows.append(row)
    return rows


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_schedule_does_what_its_collective_promises(collective, algorithm):
    """
    Each schedule computes its collective for every world size, because the bytes of a wrong
    algorithm mean nothing.

    `holdings` itself refuses to send a chunk that a rank does not hold, and to add a part twice.
    """
    for world_size in WORLD_SIZES:
        for root in {0, world_size // 2, world_size - 1}:
            plan = schedule(collective, algorithm, world_size, 5, root)
            held = plan.holdings()[-1]
            want = wanted(collective, world_size, root, len(plan.lengths))
            for rank in range(world_size):
                for got, expected in zip(held[rank], want[rank], strict=True):
                    assert expected is None or got == expected, (world_size, root, rank)


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_schedule_sends_and_receives_one_message_a_step(collective, algorithm):
    """
    In one step a rank sends at most one message and receives at most one, as the cost model
    assumes.
    """
    for world_size in WORLD_SIZES:
        for step in schedule(collective, algorithm, world_size, 5).steps:
            assert len({transfer.sender for transfer in step}) == len(step) > 0
            assert len({transfer.receiver for transfer in step}) == len(step)
            assert all(transfer.sender != transfer.receiver for transfer in step)


@settings(max_examples=80)
@given(
    pair=st.sampled_from(PAIRS),
    world_size=st.integers(1, 9),
    num_elements=st.integers(0, 200),
    element_bytes=st.sampled_from([1, 2, 4, 8]),
    data=st.data(),
)
def test_rank_costs_receive_what_was_sent(pair, world_size, num_elements, element_bytes, data):
    """
    The bytes received equal the bytes sent, and one rank alone sends none.
    """
    root = data.draw(st.integers(0, world_size - 1))
    costs = rank_costs(schedule(*pair, world_size, num_elements, root), element_bytes, LINK)
    assert [cost.rank for cost in costs] == list(range(world_size))
    assert sum(c.sent_bytes for c in costs) == sum(c.received_bytes for c in costs)
    assert sum(c.num_sent for c in costs) == sum(c.num_received for c in costs)
    assert all(c.sent_bytes % element_bytes == 0 for c in costs)
    if world_size == 1:
        assert costs[0].num_sent == costs[0].sent_bytes == costs[0].finish_s == 0


@settings(max_examples=80)
@given(world_size=st.integers(1, 12), num_elements=st.integers(0, 10_000))
def test_ring_all_reduce_sends_two_passes_less_two_chunks(world_size, num_elements):
    """
    Each rank sends 2 (w - 1) / w of the tensor if w divides it, and is exact to the element if not.

    Passing the whole tensor round w - 1 times gives the right sum too, but more bytes.
    """
    lengths = chunk_lengths(num_elements, world_size)
    sent = sent_bytes("all_reduce", "ring", world_size, num_elements, 4)
    if world_size == 1:
        assert sent == [0]
        return
    for rank in range(world_size):
        unsent = lengths[rank] + lengths[(rank + 1) % world_size]
        assert sent[rank] == 4 * (2 * num_elements - unsent)
    assert sum(sent) == 4 * 2 * (world_size - 1) * num_elements
    if num_elements % world_size == 0:
        assert set(sent) == {4 * 2 * (world_size - 1) * num_elements // world_size}
    whole_tensor_round = 4 * (world_size - 1) * num_elements
    if world_size > 2 and num_elements >= world_size:
        assert max(sent) < whole_tensor_round


def test_reduce_scatter_ring_ends_where_torch_puts_the_chunk():
    """
    torch's reduce_scatter gives rank r chunk r, so each rank sends all chunks but its own.
    """
    assert sent_bytes("reduce_scatter", "ring", 4, 10, 1) == [10 - 3, 10 - 3, 10 - 2, 10 - 2]
    assert sent_bytes("all_gather", "ring", 4, 10, 1) == [10 - 3, 10 - 2, 10 - 2, 10 - 3]


def test_hub_and_ring_send_equally_much_but_the_hub_alone_sends_most():
    """
    A hub and a ring send the same number of bytes in all, but the hub's own link carries most
    (claim C04): its load grows with the number of ranks.
    """
    for world_size in (2, 4, 8, 64):
        hub = sent_bytes("all_reduce", "hub", world_size, 6400, 4)
        ring = sent_bytes("all_reduce", "ring", world_size, 6400, 4)
        assert sum(hub) == sum(ring) == 2 * (world_size - 1) * 6400 * 4
        assert max(hub) == hub[0] == (world_size - 1) * 6400 * 4
        assert max(ring) == 2 * (world_size - 1) * 6400 * 4 // world_size < 2 * 6400 * 4


def test_hub_moves_with_its_root():
    """
    The rank that sends most is the hub, whichever rank it is.
    """
    assert sent_bytes("all_reduce", "hub", 4, 10, 1, root=2) == [10, 10, 30, 10]


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_critical_path_is_what_the_schedule_takes(collective, algorithm):
    """
    The formula of the critical path equals the time of the executed schedule.

    All world sizes divide the length. Both sides are sums of at most a hundred positive doubles, so
    they agree to much better than 1e-12.
    """
    if (collective, algorithm) in NO_FORMULA:
        with pytest.raises(BadInput, match="Count it with rank_costs"):
            critical_path(collective, algorithm, 4)
        return
    num_elements = 16 * 9 * 5 * 7 * 17
    for world_size in WORLD_SIZES:
        plan = schedule(collective, algorithm, world_size, num_elements)
        counted_s = max(cost.finish_s for cost in rank_costs(plan, 4, LINK))
        formula_s = collective_s(collective, algorithm, world_size, num_elements * 4, LINK)
        assert formula_s == pytest.approx(counted_s, rel=1e-12)


def test_rank_costs_finish_one_after_the_other_down_a_chain():
    """
    A rank far from the root finishes later, because each hop of the tree is one round.
    """
    plan = schedule("broadcast", "tree", 3, 1)
    finish = [cost.finish_s for cost in rank_costs(plan, 4, Link(1.0, 1.0))]
    assert finish == [10.0, 5.0, 10.0]
    plan = schedule("broadcast", "hub", 4, 1)
    assert [c.finish_s for c in rank_costs(plan, 4, Link(1.0, 1.0))] == [15.0, 5.0, 10.0, 15.0]


def test_rank_costs_charge_the_adding_to_messages_that_are_added():
    """
    Adding costs time for messages that are added (Thakur et al.), and not for copies.
    """
    link = Link(0.0, 1.0, add_s_per_byte=0.5)
    reduce = rank_costs(schedule("reduce", "hub", 2, 10), 1, link)
    broadcast = rank_costs(schedule("broadcast", "hub", 2, 10), 1, link)
    assert [cost.finish_s for cost in reduce] == [15.0, 15.0]
    assert [cost.finish_s for cost in broadcast] == [10.0, 10.0]


def test_barrier_has_messages_and_no_bytes():
    """
    A barrier sends messages without bytes, so it costs only latency.
    """
    for algorithm in ALGORITHMS["barrier"]:
        costs = rank_costs(schedule("barrier", algorithm, 5, 1000), 4)
        assert sum(cost.num_sent for cost in costs) > 0
        assert sum(cost.sent_bytes for cost in costs) == 0


@given(num_elements=st.integers(0, 10_000), num_chunks=st.integers(1, 70))
def test_chunks_cover_every_element_once(num_elements, num_chunks):
    """
    Chunks cover every element once, as those of torch.tensor_split: lengths differ by at most one,
    and longer chunks come first.
    """
    lengths = chunk_lengths(num_elements, num_chunks)
    assert sum(lengths) == num_elements
    assert len(lengths) == num_chunks
    assert list(lengths) == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1
    bounds = chunk_bounds(num_elements, num_chunks)
    assert [0, *(stop for _, stop in bounds)] == [*(start for start, _ in bounds), num_elements]
    assert tuple(stop - start for start, stop in bounds) == lengths


def test_chunks_are_those_of_torch():
    """
    The chunks are those of torch, because the trace compares bytes exactly.
    """
    torch = pytest.importorskip("torch")
    for num_elements in (0, 1, 3, 4, 10, 1023):
        for num_chunks in (1, 2, 3, 4, 7):
            pieces = torch.tensor_split(torch.arange(num_elements), num_chunks)
            assert tuple(map(len, pieces)) == chunk_lengths(num_elements, num_chunks)


@pytest.mark.parametrize(
    ("one", "other"),
    [("tree", "ring"), ("ring", "recursive_doubling"), ("hub", "recursive_doubling")],
)
@pytest.mark.parametrize("world_size", [3, 4, 8, 13])
def test_crossover_is_where_both_take_equally_long(one, other, world_size):
    """
    At the crossover both algorithms take equally long. Below and above it different ones win, or
    one wins everywhere.
    """

    def gap(num_bytes):
        return collective_s("all_reduce", one, world_size, num_bytes, LINK) - collective_s(
            "all_reduce", other, world_size, num_bytes, LINK
        )

    size = crossover_bytes("all_reduce", one, other, world_size, LINK)
    if size is None:
        assert gap(1) * gap(10**9) >= 0
    else:
        at = collective_s("all_reduce", one, world_size, size, LINK)
        # Both sides are a few products and sums of doubles, with at most twenty roundings.
        assert abs(gap(size)) <= 20 * 2**-53 * at
        assert gap(size / 2) * gap(size * 2) < 0
        assert crossover_bytes("all_reduce", other, one, world_size, LINK) == size
