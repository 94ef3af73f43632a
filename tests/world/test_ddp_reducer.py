"""
The inside of torch's DDP: its buckets, their order, and how much communication overlaps with
backward.
"""

import pytest
import torch
from ddp_shards import shard
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import WORLD_SIZES, run_world

from ddp_lessons.ddp import (
    Bucket,
    BucketRecorder,
    Overlap,
    buckets_before_rebuild,
    overlap,
    parameter_bytes,
    ready_order,
    rebuilt_buckets,
)
from ddp_lessons.errors import BadInput


class Backwards(nn.Module):
    """
    A model that registers its layers in the order in which their gradients become ready, not in
    that of use.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(8, 3)
        self.first = nn.Linear(5, 8)
        self.first.bias.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def _records(rank, world_size):
    model = DistributedDataParallel(Backwards(), bucket_cap_mb=100 / 2**20)
    model._set_ddp_runtime_logging_sample_rate(1)
    before = buckets_before_rebuild(model)
    recorder = BucketRecorder(model)
    with pytest.raises(BadInput) as refused:
        rebuilt_buckets(model)
    for step in range(3):
        model(shard(rank, step)).sum().backward()
    return before, recorder.steps, rebuilt_buckets(model), ready_order(model), str(refused.value)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_bucket_recorder_sees_buckets_rebuilt_in_the_order_of_gradients(world_size):
    """
    The first step has one bucket. Later steps have buckets in the order of gradients, not of
    registration.
    """
    for before, steps, rebuilt, order, refused in run_world(world_size, _records):
        assert before == [4 * (24 + 3 + 40)]
        assert [len(step) for step in steps] == [1, 2, 2]
        assert steps[0][0].names == ("last.weight", "last.bias", "first.weight")
        assert steps[0][0].num_bytes == before[0]
        assert order == ["last.bias", "last.weight", "first.weight"]
        assert rebuilt == [
            Bucket(0, ("last.bias", "last.weight"), 27, 108),
            Bucket(1, ("first.weight",), 40, 160),
        ]
        assert list(steps[1]) == list(steps[2]) == rebuilt
        assert refused == (
            "Buckets not rebuilt: DDP must have begun its second forward "
            "(got 0 finished). Run two steps first."
        )


def _keeps_buckets(rank, world_size):
    model = DistributedDataParallel(
        Backwards(), bucket_cap_mb=100 / 2**20, find_unused_parameters=True
    )
    before, recorder = buckets_before_rebuild(model), BucketRecorder(model)
    for step in range(2):
        model(shard(rank, step)).sum().backward()
    with pytest.raises(BadInput) as refused:
        rebuilt_buckets(model)
    return before, [[bucket.names for bucket in step] for step in recorder.steps], refused.value


def test_ddp_keeps_its_buckets_if_it_looks_for_unused_parameters():
    """
    With `find_unused_parameters` DDP does not rebuild its buckets, because the order of gradients
    may change with every step.
    """
    for before, steps, refused in run_world(2, _keeps_buckets):
        assert before == [4 * 40, 4 * (3 + 24)]
        assert steps == [[("first.weight",), ("last.weight", "last.bias")]] * 2
        assert str(refused) == (
            "Buckets never rebuilt: DDP must not look for unused parameters "
            "(got find_unused_parameters=True). Use a BucketRecorder."
        )


def _overlap(rank, world_size):
    layers = [nn.Linear(64, 64) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1 / 2**20)
    model._set_ddp_runtime_logging_sample_rate(1)
    before = overlap(model)
    for step in range(4):
        model(shard(rank, step, width=64)).sum().backward()
    return before, overlap(model)


def test_overlap_is_what_backward_hides_of_communication():
    """
    The overlap is the part of communication that backward hides. With a bucket for each parameter
    the first is sent before the last gradient is ready.
    """
    for before, after in run_world(2, _overlap):
        assert before == Overlap(0.0, 0.0, 0.0)
        assert before.share == 0.0
        assert 0 < after.overlap_s <= min(after.backward_s, after.communication_s)
        assert 0 < after.share <= 1


def _bytes(rank, world_size):
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    model[1].weight = model[0].weight
    return parameter_bytes(model), parameter_bytes(DistributedDataParallel(model))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_parameter_bytes_of_ddp_do_not_fall_with_ranks(world_size):
    """
    DDP replicates the model and does not split it (claim C13). A tied weight counts once.
    """
    assert run_world(world_size, _bytes) == [(4 * (25 + 5 + 5),) * 2] * world_size
