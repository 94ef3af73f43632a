"""
Recording: what a trace sees, and that it changes nothing.
"""

import json
import os
import pickle
import threading
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work, _dump_fr_trace_json
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.trace import from_plain, gather, match, to_plain, trace, unmatched
from ddp_lessons.trace.operations import OPERATIONS
from ddp_lessons.trace.tap import MAX_HELD_WORKS, TAP

N = 6  # elements of a tensor: 24 bytes of float32


def _seen(events):
    return [(e.name, e.input_bytes, e.output_bytes, e.peer) for e in events if e.is_communication]


def _call_each_collective(rank, world_size):
    def tensor(num=N):
        return torch.arange(num, dtype=torch.float32)

    def tensors():
        return [tensor() for _ in range(world_size)]

    root, everyone = world_size - 1, N * world_size
    is_root = rank == root
    with trace() as events, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 2.13 has new names for two of them; 2.11 has not
        dist.all_reduce(tensor())
        dist.all_reduce(tensor(), op=dist.ReduceOp.MAX)
        dist.all_reduce_coalesced([tensor(), tensor(2)])
        dist.broadcast(tensor(), root)
        dist.reduce(tensor(), root)
        dist.all_gather(tensors(), tensor())
        dist.all_gather_into_tensor(tensor(everyone), tensor())
        dist.reduce_scatter(tensor(), tensors())
        dist.reduce_scatter_tensor(tensor(), tensor(everyone))
        dist.gather(tensor(), tensors() if is_root else None, dst=root)
        dist.scatter(tensor(), tensors() if is_root else None, src=root)
        dist.all_to_all(tensors(), tensors())
        dist.all_to_all_single(tensor(everyone), tensor(everyone))
        dist.all_reduce(torch.zeros(0))
        dist.all_reduce(torch.zeros(4, 3, dtype=torch.float64).t())
        dist.all_gather_coalesced([[tensor(), tensor(2)] for _ in range(world_size)],
                                  [tensor(), tensor(2)])  # fmt: skip
        dist.barrier()
        dist.monitored_barrier()
    assert all(event.ranks == tuple(range(world_size)) for event in events)
    assert all(event.start_ns <= event.end_ns for event in events)
    assert [event.sequence for event in events] == list(range(len(events)))
    assert [events[0].reduce_op, events[1].reduce_op, events[3].reduce_op] == ["SUM", "MAX", None]
    assert {event.dtype for event in events} == {"float32", "float64", None}
    return _seen(events)


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_trace_sees_each_collective_with_its_bytes(world_size):
    """
    Checks and cost formulas count bytes, so the counts must be exact: 4 bytes an element.
    """
    one, all_, root = 24, 24 * world_size, world_size - 1
    for rank, seen in enumerate(run_world(world_size, _call_each_collective)):
        is_root = rank == root
        assert seen == [
            ("all_reduce", one, one, None),
            ("all_reduce", one, one, None),
            ("all_reduce_coalesced", 32, 32, None),
            ("broadcast", one * is_root, one * (not is_root), root),
            ("reduce", one, one * is_root, root),
            ("all_gather", one, all_, None),
            ("all_gather_into_tensor", one, all_, None),
            ("reduce_scatter", all_, one, None),
            ("reduce_scatter_tensor", all_, one, None),
            ("gather", one, all_ * is_root, root),
            ("scatter", all_ * is_root, one, root),
            ("all_to_all", all_, all_, None),
            ("all_to_all_single", all_, all_, None),
            ("all_reduce", 0, 0, None),
            ("all_reduce", 96, 96, None),
            ("all_gather_coalesced", 32, 32 * world_size, None),
            ("barrier", 0, 0, None),
            ("monitored_barrier", 0, 0, None),
        ]


def _send_in_every_way(rank, world_size):
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    out, into = torch.ones(N), torch.zeros(N)
    with trace() as events:
        dist.batch_isend_irecv([dist.P2POp(dist.isend, out, right),
                                dist.P2POp(dist.irecv, into, left)])[1].wait()  # fmt: skip
        handle = dist.isend(out, right, tag=7)
        dist.recv(into, left, tag=7)
        handle.wait()
        handle = dist.isend(out[:2], right)
        assert dist.recv(into[:2]) == left
        handle.wait()
        things = [None] * world_size
        dist.all_gather_object(things, "x" * rank)
        dist.send_object_list(["thing"], right) if rank % 2 == 0 else None
        dist.recv_object_list([None], left) if left % 2 == 0 else None
    return list(events)


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [2, 4])
def test_trace_sees_batches_messages_from_anyone_and_objects(world_size):
    """
    A ring is judged by its messages, however they are sent.
    """
    traces = run_world(world_size, _send_in_every_way)
    for rank, events in enumerate(traces):
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        assert _seen(events)[:6] == [
            ("send", 24, 0, right), ("recv", 0, 24, left),
            ("send", 24, 0, right), ("recv", 0, 24, left),
            ("send", 8, 0, right), ("recv", 0, 8, left),
        ]  # fmt: skip
        assert [event.tag for event in events[:6]] == [0, 0, 7, 7, 0, 0]
        assert [event.sequence for event in events[:6]] == [0, 0, 0, 0, 1, 1]
        assert [name for name, *_ in _seen(events)[6:8]] == ["all_gather", "all_gather"]
        assert [name for name, *_ in _seen(events)[8:]] == (
            ["recv", "send"][1 - rank % 2 :][:1] * 2
        )
        assert all(event.end_ns for event in events[1:])
    assert unmatched(traces) == []


def _talk_in_subgroup(rank, world_size):
    late = dist.new_group([2, 0])
    with trace() as events:
        group = dist.new_group([world_size - 1, 1])
        if rank in (0, 2):
            dist.broadcast(torch.ones(1), 2, group=late)
            (dist.send if rank == 2 else dist.recv)(torch.ones(1), 2 - rank, group=late)
        if rank in (1, world_size - 1):
            dist.all_reduce(torch.ones(2), group=group)
    return [(e.name, e.ranks, e.peer, e.output_bytes) for e in events if e.is_communication]


@pytest.mark.ranks
def test_trace_names_ranks_of_subgroups_as_the_default_group_does():
    """
    Rank 0 of a subgroup is somebody else; a message must name who it really is.
    """
    seen = run_world(4, _talk_in_subgroup)
    calls = [[call for call in calls if call[0] != "barrier"] for calls in seen]
    assert calls[0] == [("broadcast", (0, 2), 2, 4), ("recv", (0, 2), 2, 4)]
    assert calls[2] == [("broadcast", (0, 2), 2, 0), ("send", (0, 2), 0, 0)]
    assert calls[1] == calls[3] == [("all_reduce", (1, 3), None, 8)]


def _model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))


def _flight_record():
    names = {"all_reduce": "all_reduce", "broadcast": "broadcast"}
    entries = json.loads(_dump_fr_trace_json())["entries"]
    return [names.get(entry["profiling_name"].removeprefix("gloo:")) for entry in entries]


def _train_under_ddp(rank, world_size):
    model = _model(seed=rank)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.002)
    batch = torch.full((2, 16), float(rank))
    before = len(_flight_record())
    ready = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready.append(name))
    with trace(model) as events:
        for step in range(2):
            ddp(batch).sum().backward()
            events.mark(f"step {step}")
        with ddp.no_sync():
            ddp(batch).sum().backward()
    gradients = [event.name for event in events if event.kind == "gradient"]
    assert gradients == ready
    names = [event.name for event in events if event.kind == "collective"]
    return list(events), names, _flight_record()[before:]


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_trace_sees_the_reducer_in_order_with_gradients(world_size):
    """
    DDP's reducer calls from C++, and DDP may be older than the trace. Torch's flight recorder is
    another witness: it must have seen the same collectives.
    """
    for events, names, recorded in run_world(world_size, _train_under_ddp):
        assert names == recorded
        assert names[-1] == "all_reduce"
        steps = [event.index for event in events if event.kind == "mark"]
        per_backward = [[e for e in events if e.backward == number] for number in range(3)]
        assert all(e.index < steps[0] for e in per_backward[0])
        for number in (0, 1):
            buckets = [e for e in per_backward[number] if e.name == "all_reduce"]
            gradients = [e for e in per_backward[number] if e.kind == "gradient"]
            assert sum(e.input_bytes for e in buckets) == sum(e.output_bytes for e in gradients)
            assert len(buckets) > number  # the first step still has torch's first, large bucket
            ready_bytes = sent_bytes = 0
            for event in per_backward[number]:
                if event.kind == "gradient":
                    ready_bytes += event.output_bytes
                elif event.name == "all_reduce":
                    sent_bytes += event.input_bytes
                    assert sent_bytes <= ready_bytes  # a bucket leaves when it is full, not before
            assert all(e.end_ns is not None and e.wait_end_ns is None for e in buckets)
        assert {e.kind for e in per_backward[2]} == {"gradient"}  # no_sync
        assert [e.index for e in events] == sorted({e.index for e in events})


def _train(rank, world_size, is_traced):
    ddp = DistributedDataParallel(_model(seed=0))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    recorder = trace(ddp)
    if is_traced:
        recorder.start()
    for step in range(3):
        optimizer.zero_grad()
        ddp(torch.full((2, 16), rank + 0.3 * step)).square().mean().backward()
        optimizer.step()
    recorder.stop()
    assert bool(recorder) == is_traced
    return torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()]).tolist()


@pytest.mark.ranks
def test_trace_changes_no_bit_of_training():
    """
    What is watched must be what runs without a watcher.
    """
    assert run_world(2, _train, True) == run_world(2, _train, False)


def _is_tapped():
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return {has_kernel(f"c10d::{name}", "BackendSelect") for name in OPERATIONS}


def _fail_with_calls_under_way(recorder, handles):
    with recorder:
        handles += [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(40)]
        assert len(TAP._held) == MAX_HELD_WORKS
        raise KeyError


def _switch(rank, world_size):
    wait, model = Work.wait, _model(seed=0)
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


@pytest.mark.ranks
def test_trace_that_is_off_leaves_nothing_behind():
    """
    Off means off: torch's table and its classes are as they were, also after an exception.
    """
    outer, inner, failed = run_world(2, _switch)[0]
    assert (outer, inner) == (["all_reduce", "barrier"], ["all_reduce"])
    assert failed == ["all_reduce"] * 40


def _fail(rank, world_size):
    group = dist.new_group(timeout=timedelta(seconds=0.3))
    with trace() as events:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)
        if rank == 0:
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(1), group=group)
            with pytest.raises(RuntimeError):
                dist.recv(torch.ones(1), 1, group=group)
    return [(event.name, event.end_ns, event.wait_end_ns) for event in events]


@pytest.mark.ranks
def test_trace_gives_no_end_to_a_call_that_failed():
    """
    The stall table reads the calls without an end.
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


@pytest.mark.ranks
def test_trace_loses_nothing_when_threads_talk():
    """
    Autograd and checkpoint writers talk from threads of their own.
    """
    traces = run_world(2, _in_threads)
    for events in traces:
        assert len(events) == 4 * 20 * 3
        places = [e.index for e in events] + [e.wait_index for e in events if e.is_communication]
        assert sorted(places) == list(range(len(places)))
    assert len(match(traces)) == 2 * 4 * 20


def _rare_ways(rank, world_size):
    import torch.distributed._functional_collectives as functional

    with trace() as events:
        functional.wait_tensor(functional.all_reduce(torch.ones(N), "sum", [0, 1]))
        with torch.inference_mode():
            dist.broadcast(torch.ones(N), 0)
        sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (5,))
        dist.all_reduce(sparse)
    return _seen(events)


@pytest.mark.ranks
def test_trace_sees_functional_inference_and_sparse_calls():
    """
    Tensor parallel and FSDP use functional collectives; inference tensors have no autograd key.
    """
    assert run_world(2, _rare_ways)[1] == [
        ("all_reduce", 24, 24, None),
        ("broadcast", 0, 24, 0),
        ("all_reduce", 2 * 8 + 2 * 4, 2 * 8 + 2 * 4, None),
    ]


def _made_by_hand(rank, world_size, folder):
    store = dist.FileStore(os.path.join(folder, "store"), world_size)
    group = dist.ProcessGroup(store, rank, world_size)
    gloo = dist.ProcessGroupGloo(store, rank, world_size, timedelta(seconds=30))
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    group._set_group_name("by hand")
    with trace() as events:
        group.allreduce([torch.ones(N)]).wait()
    return [(event.name, event.group, event.ranks, event.rank) for event in events]


@pytest.mark.ranks
def test_trace_sees_a_group_that_torch_distributed_does_not_know(tmp_path):
    """
    Some libraries make groups from the classes below `torch.distributed`.
    """
    seen = run_world(2, _made_by_hand, str(tmp_path), join=False)
    assert seen[1] == [("all_reduce", "by hand", (0, 1), 1)]


def _pretend(rank, world_size):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=1024)
    with trace() as events:
        dist.all_reduce(torch.ones(N))
    return [(event.name, event.rank, len(event.ranks), event.input_bytes) for event in events]


@pytest.mark.ranks
def test_trace_works_with_another_backend():
    """
    Nothing in it knows Gloo: the fake backend of 1,024 ranks is traced alike.
    """
    assert run_world(1, _pretend, join=False)[0] == [("all_reduce", 3, 1024, 24)]


def test_trace_records_marks_and_spans_without_a_group():
    """
    A lesson can mark its steps before any group exists, and events travel as JSON and pickles.
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


@pytest.mark.ranks
def test_gather_gives_every_rank_the_same_traces():
    """
    Every rank can draw the whole picture.
    """
    answers = run_world(3, _gather)
    assert answers[0] == answers[1] == answers[2]
    assert [[event.rank for event in events] for events in answers[0]] == [[0], [1], [2]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_trace_sees_nccl(tmp_path):
    """
    On a GPU the reducer's calls come from autograd's own thread.
    """
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        model = _model(seed=0).cuda()
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.002)
        with trace(model) as events:
            ddp(torch.ones(2, 16, device="cuda")).sum().backward()
            dist.barrier()
        buckets = [e for e in events if e.name == "all_reduce" and e.backward == 0]
        gradients = [e for e in events if e.kind == "gradient"]
        assert sum(e.input_bytes for e in buckets) == sum(e.output_bytes for e in gradients)
    finally:
        dist.destroy_process_group()
