"""
What accumulation saves in memory, and what it does not.
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
    A quarter of the activations; parameters, gradients and optimizer state stay (C17).
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
    # float32; Adam keeps two numbers for each, and a step count for each of four tensors.
    assert (
        num_bytes[4][1]
        == num_bytes[1][1]
        == {
            "parameters": 4 * num_parameters,
            "gradients": 4 * num_parameters,
            "optimizer": 4 * 2 * num_parameters + 4 * 4,
        }
    )
    # For each sample: the input, ReLU's result, tanh's; the loss's square saves tanh's again.
    # Scalars that the weighing saves do not depend on the batch: 8 bytes each at most.
    per_sample = 4 * (16 + 32 + 32)
    for num_parts, (peak_bytes, _) in num_bytes.items():
        assert 0 <= peak_bytes - 64 // num_parts * per_sample <= 16


def test_saved_bytes_frees_what_backward_has_used():
    """
    Nothing is counted, and nothing lives on, after the graph is gone.
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
    Lesson 07 draws them: parts shrink the activations, and nothing else.
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
    # Scalars that the loss and the weighing save do not depend on the batch.
    assert 0 <= 4 * used[16]["activations"] - used[64]["activations"] <= 4 * 16
