"""
What accumulation saves in memory, and what it does not.
"""

import torch
from torch import nn

from ddp_lessons.accumulation import (
    SavedBytes,
    Window,
    state_bytes,
)


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
