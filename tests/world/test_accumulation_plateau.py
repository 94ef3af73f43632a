"""
A schedule that reads the loss lowers the learning rate on all ranks at the same step.
"""

import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from worlds import WORLD_SIZES, run_world

from ddp_lessons.accumulation import (
    PlateauSchedule,
    global_mean,
)
from ddp_lessons.errors import BadInput


def _plateau(rank, world_size):
    torch.manual_seed(rank)
    rates = {"ours": [], "local": []}
    means = []
    schedules = {}
    optimizers = {}
    for name in rates:
        optimizers[name] = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    options = {"factor": 0.5, "patience": 1}
    schedules["ours"] = PlateauSchedule(optimizers["ours"], **options)
    schedules["local"] = ReduceLROnPlateau(optimizers["local"], **options)
    for step in range(12):
        # The last rank has no sample. The losses of the other ranks stop falling at a step that
        # differs by rank.
        num_local = 0 if rank == world_size - 1 and world_size > 1 else rank + 3
        loss = 1.0 / (1 + min(step, 2 * rank + 2)) + 1e-3 * torch.rand(()).item()
        means.append(schedules["ours"].step(loss * num_local, num_local))
        schedules["local"].step(loss)
        for name in rates:
            rates[name].append(optimizers[name].param_groups[0]["lr"])
    resumed = PlateauSchedule(optimizers["ours"], **options)
    resumed.load_state_dict(schedules["ours"].state_dict())
    nothing = ""
    try:
        resumed.step(0.0, 0)
    except BadInput as error:
        nothing = str(error)
    return rates, means, resumed.state_dict() == schedules["ours"].state_dict(), nothing


@pytest.mark.bitwise
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_plateau_schedule_lowers_the_rate_on_all_ranks_together(world_size):
    """
    `PlateauSchedule` lowers the rate on all ranks at the same step. With torch's schedule and its
    local loss, each rank lowers its rate at another step (claim C19).
    """
    results = run_world(world_size, _plateau)
    rates, means, _, _ = results[0]
    assert rates["ours"][-1] < 1.0
    for own_rates, own_means, is_resumed, nothing in results:
        assert own_rates["ours"] == rates["ours"]
        assert own_means == means, "equal to the last bit"
        assert is_resumed
        assert nothing.startswith("No samples: expected at least one over all ranks")
    if world_size > 1:
        assert any(own["local"] != rates["local"] for own, _, _, _ in results)


def _means(rank, world_size):
    total = [1e16, 1.0, -1e16, 1.0][rank]
    return (
        global_mean(total, rank),
        global_mean(torch.tensor(rank + 1.0), rank + 1),
        global_mean(math.inf if rank == 1 else 1.0, 1),
        global_mean(math.nan if rank == 3 else 1.0, 1),
    )


def test_global_mean_rounds_once():
    """
    The exact sum of 1e16 + 1 - 1e16 + 1 is 2; added in any order with a rounding each, it would be
    0, 1 or 2. A mean of the ranks' means would weight samples unequally. A loss that is infinite or
    not a number must reach every rank.
    """
    for exact, ones, infinite, not_a_number in run_world(4, _means):
        assert exact == 2.0 / 6
        assert ones == 1.0
        assert infinite == math.inf
        assert math.isnan(not_a_number)


def test_schedule_of_a_group_of_one(lone_group):
    """
    A script that was written for many ranks also runs on one.
    """
    assert global_mean(3.0, 2) == 1.5
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = PlateauSchedule(optimizer, patience=0)
    assert [schedule.step(2.0, 2), schedule.step(4.0, 2)] == [1.0, 2.0]
    assert optimizer.param_groups[0]["lr"] == 0.1
    schedule.load_state_dict(schedule.state_dict())
    assert global_mean(math.inf, 1) == math.inf
    with pytest.raises(BadInput, match=r"rank 0 of 1"):
        schedule.step(0.0, 0)
