"""
Effective batch sizes, learning rates, and schedules that need no message.
"""

import itertools

import pytest
import torch
from accumulation_toy import EPS, samples
from torch import nn

from ddp_lessons.accumulation import (
    effective_batch_size,
    scaled_learning_rate,
    set_learning_rate,
    warmup_cosine,
)
from ddp_lessons.errors import BadInput


def test_effective_batch_and_scaled_rates():
    """
    The functions give the figures of Goyal et al.: a rate of 0.1 for a batch of 256 becomes 3.2 for
    8,192.
    """
    assert effective_batch_size(32, 8, 32) == 8192
    assert scaled_learning_rate(0.1, 256, 8192) == pytest.approx(3.2, rel=4 * EPS)
    assert scaled_learning_rate(0.1, 256, 1024, "square root") == 0.2
    assert scaled_learning_rate(0.1, 256, 128) == 0.05
    with pytest.raises(BadInput, match=r"^Bad batch"):
        effective_batch_size(32, 0)
    with pytest.raises(BadInput, match=r"^Bad batch"):
        scaled_learning_rate(0.1, 256, 0)
    with pytest.raises(BadInput, match=r"^Unknown rule: expected linear or square root"):
        scaled_learning_rate(0.1, 256, 512, "cubic")


def test_linear_rule_makes_one_large_step_of_small_ones():
    """
    If the gradient does not depend on the weights, k small steps and one large step have the same
    result.
    """
    small, large = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()
    large.load_state_dict(small.state_dict())
    inputs, _ = samples(8)
    for model, batch_size in ((small, 2), (large, 8)):
        rate = scaled_learning_rate(0.5, 2, batch_size)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for batch in inputs.split(batch_size):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
    # 4 steps, each of which rounds weights and gradients of at most 12.
    assert (small.weight - large.weight).abs().max() <= 4 * 4 * 12 * EPS


def test_warmup_cosine_climbs_and_falls():
    """
    The rate depends on the step alone, so ranks with the same step count agree without a message
    (claim C19).
    """
    rates = [warmup_cosine(step, 12, 1.0, 4, final_rate=0.1) for step in range(14)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.55, rel=4 * EPS)
    assert rates[12] == rates[13] == pytest.approx(0.1, rel=4 * EPS)
    assert all(a > b for a, b in itertools.pairwise(rates[4:13]))
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [parameter]}, {"params": []}], lr=1.0)
    set_learning_rate(optimizer, rates[0])
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
    for step, num_steps, warmup in ((-1, 10, 0), (0, 10, 10), (0, 10, -1), (0, 0, 0)):
        with pytest.raises(BadInput, match=r"^Bad schedule"):
            warmup_cosine(step, num_steps, 1.0, warmup)
