"""
The memory that accumulation saves, and the memory that it does not save.
"""

import torch
from torch import nn

from ddp_lessons.accumulation import (
    SavedBytes,
    Window,
    state_bytes,
    step_bytes,
)
from ddp_lessons.accumulation.example import deep_network


def test_accumulation_saves_activations_and_nothing_else():
    """
    Four micro-batches need a quarter of the activations. Parameters, gradients and optimizer state
    stay as large (claim C17).
    """
    num_bytes = {}
    for num_parts in (1, 4):
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh())
        optimizer = torch.optim.Adam(model.parameters())
        parts = [torch.randn(64 // num_parts, 16) for _ in range(num_parts)]
        with SavedBytes(model) as saved, Window(model, parts) as window:
            for inputs in window:
                window.backward(model(inputs).square().mean())
        optimizer.step()
        num_bytes[num_parts] = saved.peak_bytes, state_bytes(model, optimizer)
    num_parameters = 16 * 32 + 32 + 32 * 32 + 32
    # float32. Adam keeps two numbers for each parameter, and a step count for each of four tensors.
    assert (
        num_bytes[4][1]
        == num_bytes[1][1]
        == {
            "parameters": 4 * num_parameters,
            "gradients": 4 * num_parameters,
            "optimizer": 4 * 2 * num_parameters + 4 * 4,
        }
    )
    # Each sample saves the input, ReLU's result and tanh's result; the loss's square saves the same
    # tanh result again. Weighting saves scalars that do not depend on the batch: at most 8 bytes
    # each.
    per_sample = 4 * (16 + 32 + 32)
    for num_parts, (peak_bytes, _) in num_bytes.items():
        assert 0 <= peak_bytes - 64 // num_parts * per_sample <= 16


def test_saved_bytes_frees_what_backward_has_used():
    """
    After the graph is gone no bytes are counted, and no tensor is kept alive.
    """
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    with SavedBytes(model) as saved:
        for _ in range(3):
            model(torch.randn(8, 4)).sum().backward()
        first = saved.peak_bytes
        model(torch.randn(8, 4)).sum()
    assert saved.peak_bytes == first == 4 * 8 * (4 + 4)
    assert saved._now_bytes == 0
    assert saved._holders == {}


def test_step_bytes_counts_a_step_whole_and_in_parts():
    """
    Micro-batches shrink the activations, and nothing else. Lesson 07 draws these numbers.
    """
    module, optimizer = deep_network("cpu")
    inputs, targets = torch.randn(64, 64), torch.randint(64, (64,))
    used = {}
    for size in (64, 16):
        before = module[0].weight.detach().clone()
        used[size] = step_bytes(module, optimizer, inputs, targets, size)
        assert not torch.equal(module[0].weight, before)
    for kind in ("parameters", "gradients", "optimizer"):
        assert used[64][kind] == used[16][kind] > 0
    # The loss and the weighting save scalars that do not depend on the batch.
    assert 0 <= 4 * used[16]["activations"] - used[64]["activations"] <= 4 * 16
