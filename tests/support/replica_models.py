"""
Models, data and classes of replicas that the tests of replicas share.
"""

import functools

import torch
from torch import nn

from ddp_lessons.replicas import (
    BucketedReplica,
    FlatReplica,
    NaiveReplica,
    OverlappedReplica,
    SharedMemoryReplica,
)

COPYING = functools.partial(OverlappedReplica, gradient_as_bucket_view=False)
ON_GPUS_TOO = (NaiveReplica, FlatReplica, BucketedReplica, OverlappedReplica, COPYING)
KINDS = (SharedMemoryReplica, *ON_GPUS_TOO)
CAP_BYTES = 500
CAP_MIB = CAP_BYTES / 2**20


def mlp(seed=0, dtype=torch.float32):
    """
    Return a small network whose gradients become ready in the reverse order of its parameters.
    """
    torch.manual_seed(seed)
    layers = [nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 31), nn.Tanh(), nn.Linear(31, 3)]
    return nn.Sequential(*layers).to(dtype)


class Odd(nn.Module):
    """
    A model with awkward parameters: tied, frozen, transposed, sliced, empty and half-precision
    ones.
    """

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(5, 5, bias=False)
        self.tied = nn.Linear(5, 5)
        self.tied.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.transposed = nn.Parameter(torch.randn(5, 4).T)
        self.sliced = nn.Parameter(torch.randn(4, 6)[:, ::2])
        self.empty = nn.Parameter(torch.randn(0, 3))
        self.scalar = nn.Parameter(torch.randn(()))
        self.bf16 = nn.Parameter(torch.randn(3).bfloat16())
        self.register_buffer("steps", torch.tensor(seed))

    def forward(self, x):
        x = torch.tanh(self.tied(self.first(x) * self.frozen))
        x = x @ self.transposed.T @ self.sliced * self.scalar
        return x * self.bf16 + self.empty.sum()


class Branches(nn.Module):
    """
    Three layers that are used in any order, or not at all. Weights are small integers, so that sums
    are exact.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))
        for part in self.parts:
            part.weight.data.random_(1, 5)

    def forward(self, x, order):
        for index in order:
            x = self.parts[index](x)
        return x.sum()


def gradients(module):
    """
    Return copies of all gradients, None for a parameter without one.
    """
    grads = [parameter.grad for parameter in module.parameters()]
    return [None if grad is None else grad.clone() for grad in grads]


def same(left, right):
    """
    Return whether two lists of tensors and Nones are equal bit for bit.
    """
    return len(left) == len(right) and all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(left, right, strict=True)
    )


def batch(rank, step=0, num_samples=4, dtype=torch.float32):
    """
    Return one rank's shard, which differs on every rank and step.
    """
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(num_samples, 7, generator=generator, dtype=torch.float64).to(dtype)


def one_float_a_rank():
    torch.manual_seed(0)
    return nn.Linear(1, 1, bias=False)


def train_by_adam(model, rank):
    """
    Make three steps with Adam on a rank's batches.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        model(batch(rank, step)).square().mean().backward()
        optimizer.step()
