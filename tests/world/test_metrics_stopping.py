"""
All ranks stop in the same epoch.
"""

import math

import pytest
import torch
from worlds import WORLD_SIZES, run_world

from ddp_lessons.errors import BadInput
from ddp_lessons.metrics import EarlyStopping
from ddp_lessons.trace import trace


def _run(rank, world_size):
    # Each rank's local loss stops falling in another epoch; the last rank has no sample.
    stopping, ends = EarlyStopping(patience=2), []
    num_samples = 0 if rank == world_size - 1 and world_size > 1 else rank + 2
    for epoch in range(20):
        loss = 1 / (1 + min(epoch, 2 * rank + 2)) + 0.1 * math.sin(rank + epoch) ** 2
        with trace() as events:
            stops = stopping.step(loss * num_samples, num_samples)
        assert [(event.name, event.input_bytes) for event in events] == [("all_reduce", 24)]
        ends.append((stops, stopping.best, stopping.num_bad))
    resumed = EarlyStopping(patience=2)
    resumed.load_state_dict(stopping.state_dict())
    return ends, resumed.state_dict() == stopping.state_dict()


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_ranks_stop_in_one_epoch(world_size):
    """
    All ranks stop in the same epoch: a rank that stopped alone would leave the others waiting.
    """
    results = run_world(world_size, _run)
    assert any(stops for stops, _, _ in results[0][0])
    for ends, is_resumed in results:
        assert ends == results[0][0], "to the last bit"
        assert is_resumed


def _steps(losses, patience, min_delta):
    stopping = EarlyStopping(patience, min_delta)
    return [stopping.step(loss, 1) for loss in losses]


@pytest.mark.parametrize(
    ("losses", "patience", "min_delta", "expected"),
    [
        ([3.0, 2.0, 1.0, 1.0, 1.0], 2, 0.0, [False] * 4 + [True]),
        ([3.0, 2.5, 2.0, 1.5], 1, 0.5, [False, True, False, True]),
        ([1.0, 2.0, 0.5, 2.0, 2.0], 2, 0.0, [False] * 4 + [True]),
        ([math.nan, math.nan, 1.0], 2, 0.0, [False, True, False]),
        ([1.0, math.nan, 0.5], 2, 0.0, [False, False, False]),
        ([math.inf, math.inf], 1, 0.0, [True, True]),
    ],
)
def test_patience_and_min_delta(lone_group, losses, patience, min_delta, expected):
    """
    A loss is better only if it is below the best by more than min_delta; nan is never better.
    """
    assert _steps(losses, patience, min_delta) == expected


def test_no_samples(lone_group):
    """
    Without samples `step` raises, since there is no loss to decide by.
    """
    with pytest.raises(BadInput, match="rank 0 of 1"):
        EarlyStopping(1).step(0.0, 0)


def _wish(rank, world_size):
    stopping = EarlyStopping(patience=9)
    return [stopping.step(1.0, 1), stopping.step(torch.tensor(1.0), 1, rank == 1)]


def test_a_rank_whose_time_is_up_stops_all():
    """
    A rank that asks to stop stops all ranks: a job that is about to be ended informs only one rank
    first.
    """
    assert run_world(3, _wish) == [[False, True]] * 3
