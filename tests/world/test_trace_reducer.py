"""
A trace sees torch's reducer and the gradients between its calls, and changes no bit of training.
"""

import json

import pytest
import torch
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.nn.parallel import DistributedDataParallel
from traced_layers import layers
from worlds import run_world

from ddp_lessons.trace import trace


def _flight_record():
    names = {"all_reduce": "all_reduce", "broadcast": "broadcast"}
    entries = json.loads(_dump_fr_trace_json())["entries"]
    return [names.get(entry["profiling_name"].removeprefix("gloo:")) for entry in entries]


def _train_under_ddp(rank, world_size):
    model = layers(seed=rank)
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


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_trace_sees_the_reducer_in_order_with_gradients(world_size):
    """
    DDP's reducer calls from C++, and DDP may be older than the trace. torch's flight recorder is an
    independent record, and has the same collectives.
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
                    assert sent_bytes <= ready_bytes  # a bucket is sent when it is full, not before
            assert all(e.end_ns is not None and e.wait_end_ns is None for e in buckets)
        assert {e.kind for e in per_backward[2]} == {"gradient"}  # no_sync
        assert [e.index for e in events] == sorted({e.index for e in events})


def _train(rank, world_size, is_traced):
    ddp = DistributedDataParallel(layers(seed=0))
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


def test_trace_changes_no_bit_of_training():
    """
    Recording must not change what it records: training gives the same bits with and without a
    trace.
    """
    assert run_world(2, _train, True) == run_world(2, _train, False)
