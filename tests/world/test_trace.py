"""
Recording: a trace sees every call, and changes nothing.
"""

import os
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_features import IS_OLD
from traced_layers import layers
from worlds import run_world

from ddp_lessons.trace import trace, unmatched

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
        warnings.simplefilter("ignore")  # 2.13 has new names for two of them; 2.11 does not
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
        if not IS_OLD:
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
            *([] if IS_OLD else [("all_to_all", all_, all_, None)]),
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


@pytest.mark.parametrize("world_size", [2, 4])
def test_trace_sees_batches_messages_from_anyone_and_objects(world_size):
    """
    Batches, messages from any rank, and objects are traced. A ring is judged by its messages,
    however they are sent.
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


def test_trace_names_ranks_of_subgroups_as_the_default_group_does():
    """
    Rank 0 of a subgroup is another rank of the default group, and an event has the number in the
    default group.
    """
    seen = run_world(4, _talk_in_subgroup)
    calls = [[call for call in calls if call[0] != "barrier"] for calls in seen]
    assert calls[0] == [("broadcast", (0, 2), 2, 4), ("recv", (0, 2), 2, 4)]
    assert calls[2] == [("broadcast", (0, 2), 2, 0), ("send", (0, 2), 0, 0)]
    assert calls[1] == calls[3] == [("all_reduce", (1, 3), None, 8)]


def _rare_ways(rank, world_size):
    import torch.distributed._functional_collectives as functional

    with trace() as events:
        functional.wait_tensor(functional.all_reduce(torch.ones(N), "sum", [0, 1]))
        with torch.inference_mode():
            dist.broadcast(torch.ones(N), 0)
        sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (5,))
        dist.all_reduce(sparse)
    return _seen(events)


def test_trace_sees_functional_inference_and_sparse_calls():
    """
    Tensor parallelism and FSDP use functional collectives, and inference tensors have no autograd
    key. Both are traced, and sparse tensors, too.
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


def test_trace_sees_a_group_that_torch_distributed_does_not_know(tmp_path):
    """
    Some libraries make groups directly from the classes below `torch.distributed`. Such groups are
    traced, too.
    """
    seen = run_world(2, _made_by_hand, str(tmp_path), join=False)
    assert seen[1] == [("all_reduce", "by hand", (0, 1), 1)]


def _pretend(rank, world_size):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=1024)
    with trace() as events:
        dist.all_reduce(torch.ones(N))
    return [(event.name, event.rank, len(event.ranks), event.input_bytes) for event in events]


def test_trace_works_with_another_backend():
    """
    The trace does not depend on Gloo: the fake backend with 1,024 ranks is traced in the same way.
    """
    assert run_world(1, _pretend, join=False)[0] == [("all_reduce", 3, 1024, 24)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_trace_sees_nccl(tmp_path):
    """
    On a GPU the reducer calls from autograd's own thread, and the trace sees these calls.
    """
    store = dist.FileStore(str(tmp_path / "store"), 1)
    gpu = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=gpu)
    try:
        model = layers(seed=0).cuda()
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.002)
        with trace(model) as events:
            ddp(torch.ones(2, 16, device="cuda")).sum().backward()
            dist.barrier()
        buckets = [e for e in events if e.name == "all_reduce" and e.backward == 0]
        gradients = [e for e in events if e.kind == "gradient"]
        assert sum(e.input_bytes for e in buckets) == sum(e.output_bytes for e in gradients)
        sent, arrived = torch.ones(3, device=gpu), torch.zeros(3, device=gpu)
        both = [dist.P2POp(dist.irecv, arrived, 0), dist.P2POp(dist.isend, sent, 0)]
        with trace() as events:
            dist.all_reduce(sent)
            for work in dist.batch_isend_irecv(both):
                work.wait()
        assert [e.name for e in events] == ["all_reduce", "recv", "send"]
        assert all(e.wait_index is not None for e in events)
    finally:
        dist.destroy_process_group()
