"""
The predicted bytes are those that real ranks hold and receive.
"""

import pytest
import torch
from torch import nn, optim
from worlds import run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.sharded_optimizer import (
    Zero1Optimizer,
    Zero2Optimizer,
    foretold_bytes,
    held_bytes,
)
from ddp_lessons.trace import trace

SHAPES = [(9, 4), (9,), (3, 9), (1,)]
OPTIMIZERS = {"Adam": (2, {}), "SGD": (1, {"lr": 0.1, "momentum": 0.9}), "Rprop": (2, {})}


def _counted(rank, world_size, stage, name):
    _, settings = OPTIMIZERS[name]
    model = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in SHAPES])
    kinds = {1: Zero1Optimizer, 2: Zero2Optimizer}
    if stage:
        optimizer = kinds[stage](model.parameters(), getattr(optim, name), **settings)
    else:
        optimizer = getattr(optim, name)(model.parameters(), **settings)
    for _ in range(2):
        optimizer.zero_grad()
        with trace() as events:
            sum(p.sum() for p in model).backward()
            held = held_bytes(model, optimizer)
            if not stage:
                for parameter in model:
                    torch.distributed.all_reduce(parameter.grad)
            optimizer.step()
    held["optimizer"] = held_bytes(model, optimizer)["optimizer"]
    return held | {"received": sum(e.output_bytes for e in events if e.is_communication)}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_foretold_bytes_are_those_of_rank_0(world_size, stage):
    """
    The prediction is right to the byte, also where the ranks do not divide a parameter.
    """
    sizes = [torch.Size(shape).numel() for shape in SHAPES]
    for name, (num_states, _) in OPTIMIZERS.items():
        results = run_world(world_size, _counted, stage, name)
        assert results[0] == foretold_bytes(sizes, world_size, stage, num_states)
        for kind in results[0]:
            assert results[0][kind] == max(result[kind] for result in results)


def test_foretelling_needs_no_ranks():
    """
    The prediction needs no ranks: a model of 7.5 billion parameters on 64 ranks, as in the paper's
    figure, in half precision.
    """
    held = foretold_bytes([7_500_000_000], 64, stage=2, num_states=6, element_bytes=2)
    assert held["parameters"] == 15e9
    assert held["gradients"] == 15e9 / 64
    assert held["optimizer"] == 90e9 / 64
    with pytest.raises(BadInput, match=r"got stage 3, 4 ranks"):
        foretold_bytes([1], 4, stage=3)
