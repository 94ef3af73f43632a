"""
A network for the tests of the trace.
"""

import torch


def layers(seed):
    """
    Return four linear layers, 8 parameters, whose gradients DDP can put into several buckets.
    """
    torch.manual_seed(seed)
    return torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
