"""
Accumulation that gathers whole micro-batches, as a guide does it: its gradient and its cost.
"""

import pytest
import torch
from accumulation_toy import Toy, mean_loss, oracle, parts_of
from torch import nn
from worlds import WORLD_SIZES, run_world

from ddp_lessons.accumulation import gathered_gradient
from ddp_lessons.trace import collectives, trace


def _gathered(rank, world_size):
    parts = parts_of(rank, [[4, 4, 4]] * world_size)
    model = Toy()
    with trace() as events:
        gradient = gathered_gradient(
            model, parts, lambda outputs, targets: mean_loss(nn.Identity(), outputs, targets)
        )
    return gradient.tolist(), collectives(events), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_gathered_gradient_is_that_of_the_whole_batch_at_a_collective_each(world_size):
    """
    The gathered gradient is right, so claim C16 is false because of the cost: one all-gather for
    each micro-batch.
    """
    whole, most_off = oracle(12 * world_size)
    for gradient, calls, left in run_world(world_size, _gathered):
        assert torch.all((torch.tensor(gradient, dtype=torch.float64) - whole).abs() <= most_off)
        assert calls == ["all_gather"] * 3
        assert left == [None] * 4
