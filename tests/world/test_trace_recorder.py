"""
A trace is switched on and off; calls fail, threads communicate, and marks are set.
"""

import json
import pickle
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work
from traced_layers import layers
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.trace import from_plain, gather, match, to_plain, trace
from ddp_lessons.trace.operations import OPERATIONS
from ddp_lessons.trace.tap import MAX_HELD_WORKS, TAP


def _is_tapped():
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return {has_kernel(f"c10d::{name}", "BackendSelect") for name in OPERATIONS}


def _fail_with_calls_under_way(recorder, handles):
    with recorder:
        handles += [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(40)]
        assert len(TAP._held) == MAX_HELD_WORKS
        raise KeyError


def _switch(rank, world_size):
    wait, model = Work.wait, layers(seed=0)
    assert _is_tapped() == {False}
    with trace() as outer:
        assert _is_tapped() == {True}
        with trace(model) as inner:
            dist.all_reduce(torch.ones(1))
        dist.barrier()
    failed, handles = trace(model), []
    with pytest.raises(KeyError):
        _fail_with_calls_under_way(failed, handles)
    assert _is_tapped() == {False}
    assert Work.wait is wait
    assert not TAP._held
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    for handle in handles:
        handle.wait()
    dist.all_reduce(torch.ones(1))
    return [[event.name for event in events] for events in (outer, inner, failed)]


def test_trace_that_is_off_leaves_nothing_behind():
    """
    A trace that is off leaves torch's table and classes as they were, also after an exception.
    """
    outer, inner, failed = run_world(2, _switch)[0]
    assert (outer, inner) == (["all_reduce", "barrier"], ["all_reduce"])
    assert failed == ["all_reduce"] * 40


def _fail(rank, world_size):
    group = dist.new_group()
    dist.barrier(group=group)  # connects first, as the limit would apply to that, too
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.3), group)
    with trace() as events:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)
        if rank == 0:
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(1), group=group)
            with pytest.raises(RuntimeError):
                dist.recv(torch.ones(1), 1, group=group)
    return [(event.name, event.end_ns, event.wait_end_ns) for event in events]


def test_trace_gives_no_end_to_a_call_that_failed():
    """
    A failed call has no end, because the stall table lists calls without an end.
    """
    never = [("all_reduce", None, None)]
    first, second = run_world(2, _fail)
    assert first[-2:] == [("all_reduce", None, None), ("recv", None, None)]
    assert second == never


def _in_threads(rank, world_size):
    def talk(tag):
        for _ in range(20):
            handle = dist.isend(torch.ones(1), 1 - rank, tag=tag)
            dist.recv(torch.ones(1), 1 - rank, tag=tag)
            handle.wait()
            events.mark(f"thread {tag}")

    with trace() as events:
        threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return list(events)


def test_trace_loses_nothing_when_threads_talk():
    """
    No event is lost when threads communicate, as those of autograd and of checkpoint writers do.
    """
    traces = run_world(2, _in_threads)
    for events in traces:
        assert len(events) == 4 * 20 * 3
        places = [e.index for e in events] + [e.wait_index for e in events if e.is_communication]
        assert sorted(places) == list(range(len(places)))
        for tag in range(4):
            assert len({e.thread for e in events if e.tag == tag}) == 1
    assert len(match(traces)) == 2 * 4 * 20


def test_trace_records_marks_and_spans_without_a_group():
    """
    A lesson can mark its steps before a group exists, and events can be sent as JSON and pickles.
    """
    recorder = trace()
    with recorder as events, events.span("forward") as forward:
        events.mark("half")
        with pytest.raises(BadInput, match="on already"):
            recorder.start()
    recorder.stop()
    assert [(e.kind, e.name, e.index, e.wait_index) for e in events] == [
        ("span", "forward", 0, 2),
        ("mark", "half", 1, None),
    ]
    assert forward is events[0]
    assert forward.start_ns <= events[1].start_ns <= forward.end_ns
    assert pickle.loads(pickle.dumps(events)) == list(events)
    assert from_plain(json.loads(json.dumps(to_plain(events)))) == list(events)
    assert repr(events) == "<trace of rank 0: 2 events, 0 communications>"


def _gather(rank, world_size):
    with trace() as events:
        dist.all_reduce(torch.ones(1))
    return gather(events)


def test_gather_gives_every_rank_the_same_traces():
    """
    Every rank gets the traces of all ranks, so each can draw the whole picture.
    """
    answers = run_world(3, _gather)
    assert answers[0] == answers[1] == answers[2]
    assert [[event.rank for event in events] for events in answers[0]] == [[0], [1], [2]]
