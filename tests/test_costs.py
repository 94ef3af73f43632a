"""
Costs are exact: every schedule is played to its end, and every formula is counted after.
"""

import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddp_lessons.costs import (
    ALGORITHMS,
    Link,
    StepModel,
    amdahl_speedup,
    chunk_bounds,
    chunk_lengths,
    collective_s,
    critical_path,
    crossover_bytes,
    fit,
    overlapped_finish_s,
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
    Return what each rank must hold in each chunk after a collective; None where it does not matter.
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
    Bytes of an algorithm that does not work are worth nothing: it is played on every world size.

    `holdings` itself refuses to send what a rank does not hold and to add a part twice.
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
    The model lets a rank send one and receive one message at a time; a step must keep to that.
    """
    for world_size in WORLD_SIZES:
        for step in schedule(collective, algorithm, world_size, 5).steps:
            assert len({transfer.sender for transfer in step}) == len(step) > 0
            assert len({transfer.receiver for transfer in step}) == len(step)
            assert all(transfer.sender != transfer.receiver for transfer in step)


@settings(max_examples=80, deadline=None)
@given(
    pair=st.sampled_from(PAIRS),
    world_size=st.integers(1, 9),
    num_elements=st.integers(0, 200),
    element_bytes=st.sampled_from([1, 2, 4, 8]),
    data=st.data(),
)
def test_rank_costs_receive_what_was_sent(pair, world_size, num_elements, element_bytes, data):
    """
    No byte is lost or made up, and nothing is sent by one rank alone.
    """
    root = data.draw(st.integers(0, world_size - 1))
    costs = rank_costs(schedule(*pair, world_size, num_elements, root), element_bytes, LINK)
    assert [cost.rank for cost in costs] == list(range(world_size))
    assert sum(c.sent_bytes for c in costs) == sum(c.received_bytes for c in costs)
    assert sum(c.num_sent for c in costs) == sum(c.num_received for c in costs)
    assert all(c.sent_bytes % element_bytes == 0 for c in costs)
    if world_size == 1:
        assert costs[0].num_sent == costs[0].sent_bytes == costs[0].finish_s == 0


@settings(max_examples=80, deadline=None)
@given(world_size=st.integers(1, 12), num_elements=st.integers(0, 10_000))
def test_ring_all_reduce_sends_two_passes_less_two_chunks(world_size, num_elements):
    """
    2 (w - 1) / w of the tensor where it divides; to the element where it does not.

    The whole tensor passed round w - 1 times gives the right sum too: the bytes tell it apart.
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
    torch's reduce_scatter gives rank r chunk r, so a rank sends all chunks but its own.
    """
    assert sent_bytes("reduce_scatter", "ring", 4, 10, 1) == [10 - 3, 10 - 3, 10 - 2, 10 - 2]
    assert sent_bytes("all_gather", "ring", 4, 10, 1) == [10 - 3, 10 - 2, 10 - 2, 10 - 3]


def test_hub_and_ring_send_equally_much_but_the_hub_alone_sends_most():
    """
    The claim of a central node (C04): its own line is the one that fills as ranks are added.
    """
    for world_size in (2, 4, 8, 64):
        hub = sent_bytes("all_reduce", "hub", world_size, 6400, 4)
        ring = sent_bytes("all_reduce", "ring", world_size, 6400, 4)
        assert sum(hub) == sum(ring) == 2 * (world_size - 1) * 6400 * 4
        assert max(hub) == hub[0] == (world_size - 1) * 6400 * 4
        assert max(ring) == 2 * (world_size - 1) * 6400 * 4 // world_size < 2 * 6400 * 4


def test_hub_moves_with_its_root():
    """
    The busiest rank is whichever stands in the middle.
    """
    assert sent_bytes("all_reduce", "hub", 4, 10, 1, root=2) == [10, 10, 30, 10]


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_critical_path_is_what_the_schedule_takes(collective, algorithm):
    """
    A formula out of a paper is right here if the clock of the played schedule agrees.

    Lengths divide by all world sizes. Both sides are sums of at most a hundred positive doubles,
    so they agree to far better than 1e-12.
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
    A rank far from the root waits longer: each hop of the tree is one round.
    """
    plan = schedule("broadcast", "tree", 3, 1)
    finish = [cost.finish_s for cost in rank_costs(plan, 4, Link(1.0, 1.0))]
    assert finish == [10.0, 5.0, 10.0]
    plan = schedule("broadcast", "hub", 4, 1)
    assert [c.finish_s for c in rank_costs(plan, 4, Link(1.0, 1.0))] == [15.0, 5.0, 10.0, 15.0]


def test_rank_costs_charge_the_adding_to_messages_that_are_added():
    """
    Thakur and others count the arithmetic too; a copy has none.
    """
    link = Link(0.0, 1.0, add_s_per_byte=0.5)
    reduce = rank_costs(schedule("reduce", "hub", 2, 10), 1, link)
    broadcast = rank_costs(schedule("broadcast", "hub", 2, 10), 1, link)
    assert [cost.finish_s for cost in reduce] == [15.0, 15.0]
    assert [cost.finish_s for cost in broadcast] == [10.0, 10.0]


def test_barrier_has_messages_and_no_bytes():
    """
    A barrier costs latency alone.
    """
    for algorithm in ALGORITHMS["barrier"]:
        costs = rank_costs(schedule("barrier", algorithm, 5, 1000), 4)
        assert sum(cost.num_sent for cost in costs) > 0
        assert sum(cost.sent_bytes for cost in costs) == 0


@given(num_elements=st.integers(0, 10_000), num_chunks=st.integers(1, 70))
def test_chunks_cover_every_element_once(num_elements, num_chunks):
    """
    As torch.tensor_split: no length differs by more than one, the longer ones first.
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
    The trace will compare bytes exactly, so the cut must be torch's own.
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
    On either side of it the other algorithm wins, or one wins everywhere.
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
        # Both sides are a few products and sums of doubles: twenty roundings at most.
        assert abs(gap(size)) <= 20 * 2**-53 * at
        assert gap(size / 2) * gap(size * 2) < 0
        assert crossover_bytes("all_reduce", other, one, world_size, LINK) == size


@settings(max_examples=60, deadline=None)
@given(
    latency_s=st.floats(1e-7, 1e-3),
    bandwidth=st.floats(1e7, 1e11),
    seed=st.integers(0, 2**32),
    noise=st.floats(1e-4, 0.03),
    world_size=st.integers(2, 8),
)
def test_fit_holds_the_truth_in_its_interval(latency_s, bandwidth, seed, noise, world_size):
    """
    Made-up measurements of a ring: the truth lies in the intervals that are asked to hold it.

    At a confidence of 1 - 1e-9 a miss in 300 intervals or so is rarer than one run in a million.
    """
    rng = random.Random(seed)
    truth = Link(latency_s, bandwidth)
    rounds, share = critical_path("all_reduce", "ring", world_size)
    samples = [
        (
            num_bytes,
            collective_s("all_reduce", "ring", world_size, num_bytes, truth)
            * (1 + noise * max(-4.0, min(4.0, rng.gauss(0, 1)))),
        )
        for num_bytes in [2**k for k in range(3, 28)] * 2
    ]
    found = fit(samples, rounds, share, confidence=1 - 1e-9)
    assert latency_s in found.latency_s
    assert bandwidth in found.bandwidth_bytes_per_s
    for num_bytes in (100, 10**5, 10**8):
        expected_s = collective_s("all_reduce", "ring", world_size, num_bytes, truth)
        assert expected_s in found.predict(num_bytes)
    assert found.num_samples == 50
    # 50 samples tell a standard deviation to a tenth of itself; five of these each way.
    assert 0.5 * noise < found.error_share < 1.5 * noise


def test_fit_intervals_hold_the_truth_as_often_as_they_say():
    """
    Too narrow is false confidence, too wide is no help: 95 % must be 95 %, for few samples too.

    In 1,000 tries the count of hits has a standard deviation of at most 6.9; four of them.
    """
    rng = random.Random(5)
    hits = {"latency": 0, "bandwidth": 0, "next": 0}
    for _ in range(1000):
        samples = [(4**k, (1e-5 + 4**k / 1e9) * (1 + 0.05 * rng.gauss(0, 1))) for k in range(3, 13)]
        found = fit(samples)
        hits["latency"] += 1e-5 in found.latency_s
        hits["bandwidth"] += 1e9 in found.bandwidth_bytes_per_s
        again = (1e-5 + 50_000 / 1e9) * (1 + 0.05 * rng.gauss(0, 1))
        hits["next"] += again in found.predict(50_000)
    for name, count in hits.items():
        assert abs(count - 950) <= 4 * 6.9, name


def test_fit_of_exact_times_is_exact():
    """
    Without noise nothing but rounding is left: some hundred operations, each 2**-53.
    """
    found = fit([(size, 2e-5 + size / 5e9) for size in (8, 1024, 2**20, 2**26)])
    assert found.latency_s.value == pytest.approx(2e-5, rel=1e-12)
    assert found.bandwidth_bytes_per_s.value == pytest.approx(5e9, rel=1e-12)
    assert found.link == Link(found.latency_s.value, found.bandwidth_bytes_per_s.value)
    other = found.predict(1000, num_rounds=6, byte_share=1.5)
    assert other.value == pytest.approx(6 * 2e-5 + 1500 / 5e9, rel=1e-12)


def test_fit_sees_the_latency_where_plain_least_squares_does_not():
    """
    Large times are off by more seconds than the latency; weighing by seconds would bury it.
    """
    rng = random.Random(1)
    sizes = [2**k for k in range(3, 29)]
    samples = [(n, (1e-5 + n / 1e9) * (1 + 0.05 * rng.gauss(0, 1))) for n in sizes]
    found = fit(samples)
    assert abs(found.latency_s.value - 1e-5) < 0.1 * 1e-5
    mean_n = sum(n for n, _ in samples) / len(samples)
    mean_s = sum(s for _, s in samples) / len(samples)
    slope = sum((n - mean_n) * (s - mean_s) for n, s in samples) / sum(
        (n - mean_n) ** 2 for n, _ in samples
    )
    assert abs(mean_s - slope * mean_n - 1e-5) > 10 * 1e-5


def test_fit_is_not_ruled_by_one_time_that_was_interrupted():
    """
    A busy machine makes times longer. The pull of one is bounded: the fit is off by less than
    half of what that time is, in logarithms, and the intervals, which it widens, hold the truth.
    """
    truth = [(4**k, 1e-5 + 4**k / 1e9) for k in range(3, 13)]
    for broken in range(10):
        samples = [(n, s * 30 if k == broken else s) for k, (n, s) in enumerate(truth)]
        found = fit(samples)
        assert 30**-0.5 < found.latency_s.value / 1e-5 < 30**0.5
        assert 30**-0.5 < found.bandwidth_bytes_per_s.value / 1e9 < 30**0.5
        assert 1e-5 in found.latency_s
        assert 1e9 in found.bandwidth_bytes_per_s


def test_fit_finds_its_way_from_far_off():
    """
    The first and the last time are wrong a hundredfold, and they are where the search starts.
    """
    truth = [(4**k, 1e-5 + 4**k / 1e9) for k in range(1, 15)]
    samples = [(truth[0][0], truth[0][1] * 100), *truth[1:-1], (truth[-1][0], truth[-1][1] / 100)]
    found = fit(samples)
    assert 1e-5 in found.latency_s
    assert 1e9 in found.bandwidth_bytes_per_s


@settings(max_examples=60, deadline=None)
@given(
    samples=st.lists(
        st.tuples(st.integers(0, 10**10), st.floats(1e-9, 1e3)), min_size=3, max_size=12
    )
)
@example([(100, 4e-6), (1000, 7.47e-4), (1, 3e-6)])  # a full step would lead to times below 0
def test_fit_of_anything_ends_in_order_or_in_a_plain_error(samples):
    """
    A learner's measurements may be nonsense; the answer must be bounds in order or BadInput.
    """
    try:
        found = fit(samples)
    except BadInput:
        return
    for interval in (found.latency_s, found.bandwidth_bytes_per_s, found.predict(1000)):
        assert 0 <= interval.low <= interval.value <= interval.high


def test_fit_never_says_that_a_message_takes_less_than_no_time():
    """
    Large sizes alone cannot tell the latency: 0 is then the best that is possible, and it says so.
    """
    found = fit([(1e8, 0.099), (2e8, 0.2), (4e8, 0.41), (8e8, 0.83)])
    assert found.latency_s.value == found.latency_s.low == 0.0
    assert 0.9e9 < found.bandwidth_bytes_per_s.value < 1.1e9
    assert found.predict(1e8).low >= 0


def test_fit_of_small_sizes_has_no_upper_bound_for_the_bandwidth():
    """
    What was not measured is not known: the interval is open.
    """
    found = fit([(1, 1.00e-5), (2, 1.02e-5), (3, 0.99e-5), (4, 1.03e-5)])
    assert found.bandwidth_bytes_per_s.high == math.inf


def test_more_ranks_do_not_help_beyond_the_serial_share():
    """
    Amdahl: with a tenth that does not divide, ten is the end.
    """
    assert amdahl_speedup(0.0, 8) == 8
    assert amdahl_speedup(1.0, 8) == 1
    assert amdahl_speedup(0.1, 10**9) == pytest.approx(10, rel=1e-7)  # short by 9e-8 of itself


def test_step_model_hides_no_more_than_backward_lasts():
    """
    Communication that outlasts backward shows, however well it overlaps.
    """
    slow = StepModel(1.0, 2.0, 0.5, communication_s=5.0, overlap_share=1.0)
    assert (slow.hidden_s, slow.step_s) == (2.0, 6.5)
    assert slow.speedup(4) == pytest.approx(4 * 3.5 / 6.5, rel=1e-15)
    half = StepModel(1.0, 2.0, 0.5, communication_s=1.0, overlap_share=0.5)
    assert (half.compute_s, half.hidden_s, half.step_s) == (3.5, 0.5, 4.0)
    assert StepModel(1.0, 2.0, 0.5, 1.0).step_s == 4.5
    with pytest.raises(BadInput, match="Nothing to do"):
        StepModel(0, 0, 0, 0).speedup(2)


def test_overlapped_finish_waits_for_gradients_and_for_the_link():
    """
    A bucket is sent when it is ready and those before it are out.
    """
    assert overlapped_finish_s([], []) == 0
    assert overlapped_finish_s([1, 2, 3], [0.5, 0.5, 0.5]) == 3.5  # the link waits for gradients
    assert overlapped_finish_s([1, 2, 3], [4, 4, 4]) == 13  # gradients wait for the link
    assert overlapped_finish_s([3], [1.5]) == 4.5  # one bucket: nothing overlaps


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: chunk_lengths(-1, 2), "Bad num_elements"),
        (lambda: chunk_lengths(1, 0), "Bad num_chunks"),
        (lambda: chunk_lengths(1.0, 2), "Bad num_elements"),
        (lambda: chunk_lengths(True, 2), "Bad num_elements"),
        (lambda: schedule("all_reduze", "ring", 2), "No such collective: expected one of broadc"),
        (lambda: schedule("all_reduce", "star", 2), "No such algorithm for all_reduce: .*ring"),
        (lambda: schedule("all_reduce", "ring", 0), "Bad world_size"),
        (lambda: schedule("all_reduce", "hub", 2, 4, root=2), "No such root: .* from 0 to 1"),
        (lambda: rank_costs(schedule("all_reduce", "ring", 2), 0), "Bad element_bytes"),
        (lambda: Link(-1.0, 1.0), "Bad latency_s"),
        (lambda: Link(math.nan, 1.0), "Bad latency_s"),
        (lambda: Link(1.0, 0.0), "Bad bandwidth"),
        (lambda: Link(1.0, 1.0, -1.0), "Bad add_s_per_byte"),
        (lambda: fit([(1, 1.0), (2, 2.0)]), "Too few measurements"),
        (lambda: fit([(1, 1.0)] * 5), "Too few measurements: .*got 5, of 1"),
        (lambda: fit([(1, 1.0), (2, 0.0), (3, 1.0)]), "Bad measurement"),
        (lambda: fit([(1, 3.0), (10**6, 2.0), (10**7, 1.0)]), "No bandwidth to be told"),
        (lambda: fit([(10**9, 1.0), (10**9 + 1, 1.1), (10**9, 1.2)]), "Sizes too alike"),
        (lambda: fit([(1, 1.0), (2, 2.0), (3, 3.0)], 0, 0), "Nothing was sent"),
        (lambda: fit([(1, 1.0), (2, 2.0), (3, 3.0)], confidence=95), "Bad confidence"),
        (lambda: amdahl_speedup(1.5, 2), "Bad serial_share"),
        (lambda: amdahl_speedup(0.5, 0), "Bad world_size"),
        (lambda: StepModel(1, 1, 1, -1), "Bad communication_s"),
        (lambda: StepModel(1, 1, 1, 1, overlap_share=2), "Bad overlap_share"),
        (lambda: overlapped_finish_s([1], []), "Lists differ"),
    ],
)
def test_costs_refuse_what_cannot_be(call, message):
    """
    A wrong number in would be a wrong number out, with nothing to show for it.
    """
    with pytest.raises(BadInput, match=message):
        call()
