"""
The traces of ranks are merged on one clock, and answer questions.
"""

import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.trace import (
    Event,
    Wait,
    argument_bytes,
    bytes_received,
    bytes_sent,
    clock_offsets_ns,
    collectives,
    early_communications,
    gather,
    match,
    merge,
    overlaps_backward,
    trace,
    traffic,
    unmatched,
    waiting_s,
    waits,
)
from ddp_lessons.trace import clock_offsets as clocks_module


def _collective(rank, index, start_ns, name="all_reduce", num_ranks=2, sequence=0, **fields):
    return Event(
        "collective", name, rank, index, start_ns, group="0", ranks=tuple(range(num_ranks)),
        sequence=sequence, **fields,
    )  # fmt: skip


def _message(name, rank, peer, index, start_ns=0, **fields):
    return Event(
        "message", name, rank, index, start_ns, group="0", ranks=(0, 1), peer=peer, tag=0,
        **{"sequence": 0, **fields},
    )  # fmt: skip


def test_merge_puts_a_receive_after_its_send_on_the_logical_clock():
    """
    A receive that is posted early ends only after its send.
    """
    zero = [Event("mark", "a", 0, 0, 5), Event("mark", "b", 0, 1, 6),
            _message("send", 0, 1, 2, wait_index=3)]  # fmt: skip
    one = [_message("recv", 1, 0, 0, wait_index=1), Event("mark", "c", 1, 2, 1)]
    placed = [(it.event.rank, it.event.name, it.start, it.end) for it in merge([zero, one])]
    assert placed == [
        (0, "a", 0, 0), (1, "recv", 0, 3), (0, "b", 1, 1), (0, "send", 2, 3), (1, "c", 4, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ends"),
    [("all_reduce", {0: 5, 1: 5}), ("broadcast", {0: 5, 1: 5}), ("reduce", {0: 1, 1: 5})],
)
def test_merge_makes_ranks_wait_for_those_they_need(name, ends):
    """
    Rank 1 is the root and comes late. In a reduce only the root waits; in the other collectives all
    ranks wait.
    """
    zero = [_collective(0, 0, 0, name, peer=1, wait_index=1)]
    one = [Event("mark", str(number), 1, number, 0) for number in range(4)]
    one.append(_collective(1, 4, 0, name, peer=1, wait_index=5))
    found = {it.event.rank: it.end for it in merge([zero, one]) if it.event.is_communication}
    assert found == ends


def test_merge_gives_an_exchange_that_is_posted_first_a_time():
    """
    Both ranks post the receive, then send, and then wait: no rank waits for itself.
    """
    traces = [
        [_message("recv", rank, 1 - rank, 0, wait_index=3),
         _message("send", rank, 1 - rank, 1, wait_index=2)]
        for rank in range(2)
    ]  # fmt: skip
    found = [(it.event.name, it.start, it.end) for it in merge(traces)]
    assert found == [("recv", 0, 3), ("recv", 0, 3), ("send", 1, 2), ("send", 1, 2)]


def test_merge_gives_no_end_to_what_nobody_answers():
    """
    Ranks in different collectives wait for ever. The merge gives these calls no end, and does not
    hang.
    """
    zero = [_collective(0, 0, 0, "all_reduce"), _message("send", 0, 1, 1)]
    one = [_collective(1, 0, 0, "barrier"), _message("recv", 1, None, 1, sequence=None)]
    placed = [(it.event.name, it.start, it.end) for it in merge([zero, one])]
    assert placed == [
        ("all_reduce", 0, None), ("barrier", 0, None), ("send", 1, 2), ("recv", 1, None),
    ]  # fmt: skip
    assert match([zero, one]) == []
    found = [(event.name, missing) for event, missing in unmatched([zero, one])]
    assert found == [("all_reduce", (1,)), ("send", (1,)), ("barrier", (0,)), ("recv", ())]


def test_merge_on_the_wall_clock_counts_microseconds_from_the_first_event():
    """
    The wall clock counts in microseconds, the unit of Chrome's format and of the pictures.
    """
    traces = [[_collective(0, 0, 9_000, end_ns=12_500)], [_collective(1, 0, 7_000)]]
    placed = [(it.event.rank, it.start, it.end) for it in merge(traces, "wall")]
    assert placed == [(1, 0.0, None), (0, 2.0, 5.5)]
    assert merge([[], []], "wall") == merge([[], []]) == []
    with pytest.raises(BadInput, match="got 'sun'"):
        merge(traces, "sun")


def test_waits_counts_from_being_blocked_to_the_last_call():
    """
    A wait lasts from when a rank blocks until the last rank has called. A rank that still computes
    does not wait, and a send into a buffer does not wait either.
    """
    in_python = _collective(0, 0, 1_000, end_ns=9_500, wait_start_ns=4_000, wait_end_ns=9_600)
    late = _collective(1, 0, 9_000, end_ns=9_500, wait_start_ns=9_100, wait_end_ns=9_600)
    assert waits([[in_python], [late]]) == [Wait(0, 1, "all_reduce", 0, 5_000 / 1e9)]
    in_reducer = [
        _collective(0, 0, 1_000, end_ns=9_500, backward=0),
        Event("gradient", "weight", 0, 1, 7_000, backward=0),
        Event("gradient", "weight", 0, 2, 30_000, backward=1),
    ]
    assert waits([in_reducer, [late]]) == [Wait(0, 1, "all_reduce", 0, 2_000 / 1e9)]
    in_cpp = _collective(0, 0, 8_000, end_ns=9_500)
    assert waits([[in_cpp], [late]]) == [Wait(0, 1, "all_reduce", 0, 1_000 / 1e9)]
    send = _message("send", 0, 1, 0, 0, end_ns=50, wait_start_ns=20, wait_end_ns=50)
    receive = _message("recv", 1, 0, 0, 900, end_ns=950, wait_start_ns=910, wait_end_ns=950)
    assert waits([[send], [receive]]) == [Wait(0, 1, "send", 0, 30 / 1e9)]
    assert waiting_s([[send], [receive]]) == [[0.0, 30 / 1e9], [0.0, 0.0]]


def _step(rank, world_size, model, exchange):
    with trace(model) as events:
        model(torch.full((2, 16), float(rank))).sum().backward()
        exchange()
    return list(events)


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))


def _exchange_gradients(rank, world_size, way):
    model, seen = _model(), []
    parameters = list(model.parameters())

    def all_at_once(*_):
        for parameter in parameters:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)

    def count(*_):
        seen.append(1)
        if len(seen) == len(parameters):
            all_at_once()

    def at_once(gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total

    if way == "ddp":
        return _step(rank, world_size, _with_small_buckets(model), lambda: None)
    for parameter in parameters:
        if way == "post hook, last":
            parameter.register_post_accumulate_grad_hook(count)
        elif way == "tensor hook, last":
            parameter.register_hook(count)
        elif way == "tensor hook, each":
            parameter.register_hook(at_once)
        elif way == "post hook, each":
            parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    return _step(rank, world_size, model, all_at_once if way == "after" else lambda: None)


def _with_small_buckets(model):
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    ddp(torch.ones(1, 16)).sum().backward()  # the first step sets the buckets
    return ddp


@pytest.mark.parametrize(
    ("way", "overlaps"),
    [
        ("ddp", True), ("post hook, each", True), ("tensor hook, each", True),
        ("after", False), ("post hook, last", False), ("tensor hook, last", False),
    ],
)  # fmt: skip
def test_overlaps_backward_tells_overlap_from_its_imitations(way, overlaps):
    """
    All six ways give the right gradients. A hook that waits for the last gradient does not overlap,
    although it runs inside backward.
    """
    for events in run_world(2, _exchange_gradients, way):
        assert overlaps_backward(events) == overlaps
        assert len(collectives(events)) >= 3
        early = early_communications(events)
        assert all(event.backward == 0 for event in early)


def test_argument_bytes_say_what_went_in_and_came_out():
    """
    A lesson prints these bytes: a scatter's root passes in what all ranks together receive.
    """
    events = [
        _collective(0, 0, 10, "scatter", input_bytes=32, output_bytes=8),
        _collective(0, 1, 20, "barrier"),
        Event("mark", "here", 0, 2, 30),
    ]
    assert argument_bytes(events) == {"scatter": (32, 8), "barrier": (0, 0)}


def test_early_communications_ignores_what_lies_between_two_backward_passes():
    """
    The all-reduce after one step is not early for the next step.
    """
    events = [
        Event("gradient", "a", 0, 0, 0, backward=0), Event("gradient", "b", 0, 1, 1, backward=0),
        _collective(0, 2, 2),
        Event("gradient", "a", 0, 3, 3, backward=1), Event("gradient", "b", 0, 4, 4, backward=1),
    ]  # fmt: skip
    assert early_communications(events) == []
    assert overlaps_backward([]) is False


def _ring(rank, world_size, chunk_length, pause_s):
    """
    Send a chunk around the ring 2(n-1) times, as a ring all-reduce does.
    """
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunk, into = torch.ones(chunk_length), torch.zeros(chunk_length)
    with trace() as events:
        for _ in range(2 * (world_size - 1)):
            time.sleep(pause_s * rank)
            receive = dist.irecv(into, left)
            send = dist.isend(chunk, right)
            receive.wait()
            send.wait()
        dist.all_reduce(chunk)
    return gather(events)


def _logical(traces):
    return [(it.event.rank, it.event.name, it.start, it.end) for it in merge(traces)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_traffic_and_the_logical_clock_are_equal_on_every_run(world_size):
    """
    A picture on the logical clock is compared by nbval, so slow ranks must not change it. The bytes
    would reveal the wrong answer that sends the whole tensor.
    """
    at_ease = run_world(world_size, _ring, 5, 0.0)[0]
    uneven = run_world(world_size, _ring, 5, 0.003)[-1]
    assert _logical(at_ease) == _logical(uneven)
    num_bytes = 2 * (world_size - 1) * 5 * 4
    for traces in (at_ease, uneven):
        assert bytes_sent(traces) == bytes_received(traces) == [num_bytes] * world_size
        assert [collectives(events) for events in traces] == [["all_reduce"]] * world_size
    last = traffic(at_ease)[-1]
    assert (last.num_sent, last.num_received) == (2 * (world_size - 1),) * 2
    assert (last.num_collectives, last.collective_input_bytes) == (1, 20)
    assert unmatched(at_ease) == []
    for it in merge(at_ease):
        assert it.end > it.start


def _offsets(rank, world_size, pretend):
    shift_ns = 5_000_000_000 * rank
    clock = time.monotonic_ns
    if pretend:
        clocks_module.time = type("Clock", (), {"monotonic_ns": lambda: clock() - shift_ns})
    before = time.monotonic_ns()
    offsets = clock_offsets_ns(machine=f"machine {rank // 2}" if pretend else None)
    return offsets, time.monotonic_ns() - before


def test_clock_offsets_of_one_machine_are_zero_and_of_others_are_measured():
    """
    The clocks of machines count from when each was switched on. The simulated clocks are 5 s apart.
    Ranks leave a barrier within the time of the measurement.
    """
    assert run_world(2, _offsets, False)[0][0] == [0, 0]
    (offsets, took_ns), *others = run_world(3, _offsets, True)
    assert all(theirs == offsets for theirs, _ in others)
    assert offsets[:2] == [0, 0]
    assert abs(offsets[2] - 10_000_000_000) <= took_ns


def test_clock_offsets_compare_clocks_where_there_is_no_boot_id(tmp_path, monkeypatch):
    """
    macOS has no boot id that would show whether two ranks share a machine, so their clocks are
    compared.
    """
    monkeypatch.setattr(clocks_module, "_BOOT_ID", tmp_path / "none")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert clock_offsets_ns() == [0]
        with trace() as events:
            dist.barrier()
        assert gather(events) == [list(events)]
    finally:
        dist.destroy_process_group()
