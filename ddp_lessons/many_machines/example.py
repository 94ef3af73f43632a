"""
What the lesson trains: digits, by each way to average, on ranks of several hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.optim import SGD

from ..asynchronous import LocalSGD, gradient_of, set_gradient
from ..asynchronous.example import backward, draw, whole_loss
from ..trace import trace
from ..workloads import digits_model
from .averages import make_way
from .crossing import crossing_bytes

if TYPE_CHECKING:
    from ..workloads import Digits
    from .roads import Road

NUM_BATCHES = 80
"""
Batches of each rank: a multiple of all windows.
"""


def train(name: str, road: Road, digits: Digits, lr: float = 0.5) -> tuple[float, int]:
    """
    Train a model; every rank computes as many batches by every way.

    Collective: every rank must call it.

    Args:
        name: One of WAYS.
        road: A Road.
        digits: The Digits.
        lr: The learning rate.

    Returns:
        tuple: The loss over all training digits, and the bytes that this rank has sent to other
        hosts.

    Lesson: 17_many_machines.
    """
    model = digits_model(seed=0)
    step = _local_steps(model, road, lr) if name == "local SGD" else _steps(name, model, road, lr)
    peers = road.everyone
    with trace() as events:
        for number in range(NUM_BATCHES):
            backward(model, *draw(digits, peers.rank, peers.world_size, number))
            step(number)
    return whole_loss(model, digits), crossing_bytes(events, road.hosts.layout)


def _steps(name, model, road, lr):
    (average, every), optimizer = make_way(name), SGD(model.parameters(), lr=lr)

    def step(number):
        if (number + 1) % every:
            return  # the next batch is added to it
        gradient = gradient_of(model) / every
        average(gradient, road)
        set_gradient(model, gradient)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _local_steps(model, road, lr):
    average, every = make_way("local SGD")

    def add_up(weights, group):
        average(weights, road)
        weights.mul_(road.everyone.world_size)  # LocalSGD divides

    local = LocalSGD(model, SGD(model.parameters(), lr=lr), every, all_reduce=add_up)
    return lambda number: local.step()


def random_gradient(rank: int, length: int, seed: int = 0) -> torch.Tensor:
    """
    Return a gradient (n,) that is another on every rank.
    """
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(length, generator=generator)
