"""
Requirements of public courses on a sharded optimizer, and a gap in their tests.

Those tests pass a class and its settings, give all ranks the same data, and compare with one
optimizer. A plain optimizer on every rank passes them. So these tests also count state, and give
ranks different data.
"""

import copy

import numpy
import pytest
import torch
from metric_shards import packed, run_packed
from torch import nn
from worlds import run_world

from ddp_lessons.sharded_optimizer import (
    OverlappedOptimizer,
    OwnerOptimizer,
    Zero1Optimizer,
    Zero2Optimizer,
    held_bytes,
)
from ddp_lessons.workloads import digits_batch, digits_model, load_digits, tied_model

NUM_STEPS = 10
ADAMW = {"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}
KINDS = (OwnerOptimizer, Zero1Optimizer, Zero2Optimizer, OverlappedOptimizer)


class Toy(nn.Module):
    """
    A model of three layers without bias, and a frozen parameter.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 10, bias=False)
        self.second = nn.Linear(10, 50, bias=False)
        self.frozen = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)
        self.last = nn.Linear(50, 5, bias=False)

    def forward(self, x):
        """
        Return the outputs, shape (N, 5), of inputs of shape (N, 10).
        """
        return self.last(self.second(self.first(x).relu()).relu())


class TiedToy(nn.Module):
    """
    A model like Toy with one weight in two layers.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(*s, bias=False) for s in ((10, 10), (10, 10), (10, 5))
        )
        self.layers[1].weight = self.layers[0].weight
        self.frozen = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)

    def forward(self, x):
        """
        Return the outputs, shape (N, 5), of inputs of shape (N, 10).
        """
        return self.layers[2](self.layers[1](self.layers[0](x).relu()).relu())


def get_sharded_optimizer(kind, model, optimizer_class, **settings):
    """
    Make a sharded optimizer as a course's adapter does, from parameters, a class and its settings.
    """
    source = model if kind is OverlappedOptimizer else model.parameters()
    return kind(source, optimizer_class, **settings)


def _same_data(rank, world_size, kind, toy):
    torch.manual_seed(42)
    plain = toy()
    sharded = copy.deepcopy(plain)
    one = torch.optim.AdamW(plain.parameters(), **ADAMW)
    other = get_sharded_optimizer(kind, sharded, torch.optim.AdamW, **ADAMW)
    for _ in range(NUM_STEPS):
        x, y = torch.rand(32, 10), torch.rand(32, 5)
        for model, optimizer in ((plain, one), (sharded, other)):
            optimizer.zero_grad()
            (y - model(x)).square().sum().backward()
            optimizer.step()
    state = sharded.state_dict()  # waits for messages on their way
    for name, value in plain.state_dict().items():
        numpy.testing.assert_allclose(state[name].numpy(), value.numpy())
    return held_bytes(sharded, other)["optimizer"], held_bytes(plain, one)["optimizer"]


@pytest.mark.bitwise
@pytest.mark.parametrize("toy", [Toy, TiedToy])
@pytest.mark.parametrize("kind", KINDS)
def test_passes_the_test_of_a_public_course_and_shards(kind, toy):
    """
    With the same data on both ranks, ten steps of AdamW are those of one optimizer. No rank holds
    more than half of the state and one parameter's state more.
    """
    largest = {Toy: 500, TiedToy: 100}[toy]
    for sharded, plain in run_world(2, _same_data, kind, toy):
        assert 0 < sharded <= plain / 2 + largest * 8
        assert sharded < plain


def _train(model, optimizer, rank, world_size):
    digits = load_digits()
    for step in range(4):
        images, labels = digits_batch(digits, 24, step=step)
        own = slice(rank, None, world_size)
        optimizer.zero_grad()
        outputs = model(images[own].double())
        nn.functional.cross_entropy(outputs, labels[own]).backward()
        optimizer.step()


def _digits(rank, world_size, kind, make):
    model = make(seed=rank).double()  # the ranks' weights differ at the start
    settings = {"lr": 0.1, "momentum": 0.9}
    optimizer = get_sharded_optimizer(kind, model, torch.optim.SGD, **settings)
    _train(model, optimizer, rank, world_size)
    return packed(model.state_dict())


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_training_is_that_of_one_process_with_all_samples(kind, world_size):
    """
    Each rank has its own samples, and begins with its own weights, which rank 0's replace. The
    result is that of one process with all samples.
    """
    for make in (digits_model, tied_model):
        model = make(seed=0).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        _train(model, optimizer, 0, 1)
        eps = torch.finfo(torch.float64).eps
        for state in run_packed(world_size, _digits, kind, make):
            for name, value in model.state_dict().items():
                # The bound covers four steps, each with sums of 24 samples and at most 64 products
                # of about 1, in at most three layers, one after the other.
                slack = 4 * 3 * (24 + 64) * eps
                torch.testing.assert_close(state[name], value, rtol=0, atol=slack)
