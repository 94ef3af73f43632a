"""
Data that differ between ranks, for tests that look inside DDP.
"""

import torch
from torch import nn


def shard(rank, step=0, num_samples=4, width=5):
    """
    Return one rank's samples, which differ on every rank and step.
    """
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(num_samples, width, generator=generator)


def net(seed=0):
    """
    Return a network of two layers that maps (N, 5) to (N, 3).
    """
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
