"""
The run of lesson 08: it must have what a weights-only checkpoint forgets, and come back exactly.
"""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons import checkpoint
from ddp_lessons.checkpoint import naive
from ddp_lessons.checkpoint.example import make_run, train

NUM_SAMPLES = 83  # on 4 ranks 21 each, so that an epoch ends within the steps of the test


def _made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 3))
    images = torch.arange(NUM_SAMPLES * 64.0).sin().view(NUM_SAMPLES, 64)
    return make_run(model, images), images, torch.arange(NUM_SAMPLES) % 3


def _weights(run):
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def _stop_and_go_on(rank, world_size):
    run, *data = _made()
    train(run, *data, 3)
    exact, weights_only = (
        torch.utils._pytree.tree_map(lambda leaf: getattr(leaf, "clone", lambda: leaf)(), state)
        for state in (checkpoint.capture(run), naive.capture(run))
    )
    train(run, *data, 5)
    right = _weights(run)
    answers = []
    for restore, state in ((checkpoint.restore, exact), (naive.restore, weights_only)):
        again, *data = _made()
        restore(again, state)
        train(again, *data, 5)
        answers.append(torch.equal(_weights(again), right))
    return answers


@pytest.mark.bitwise
@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_exact_goes_on_to_the_bit_and_weights_only_does_not(world_size):
    """
    C21: five more steps, over the end of an epoch, after a stop at step 3.

    The model is large enough for DDP's new order of buckets to show on 3 and 4 ranks.
    """
    assert run_world(world_size, _stop_and_go_on) == [[True, False]] * world_size


class _Straight(torch.nn.Module):
    """
    Two parameters whose gradients are what goes in. The last one's is ready first.
    """

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(8))
        self.last = torch.nn.Parameter(torch.zeros(24))

    def forward(self, x):
        return (self.first * x).sum() + (self.last * x).sum()


def _gradients_of_three_passes(rank, world_size):
    # A mean of three: 2**24 has no room for 1 beside it, so the order of three additions shows.
    mine = world_size * (2.0**24, 1.0, -(2.0**24), 1.0)[rank]
    model, seen = DistributedDataParallel(_Straight()), []
    for _ in range(3):
        model.zero_grad()
        model(torch.tensor(mine)).backward()
        seen.append(torch.cat([p.grad for p in model.parameters()]).tolist())
    return seen


@pytest.mark.bitwise
@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_sums_of_three_ranks_change_when_ddp_orders_its_buckets_anew(world_size):
    """
    Why `make_run` makes an idle pass: the same numbers, added in a second pass, give another sum.

    Nothing here depends on the kind of CPU. Two numbers have one sum, whichever comes first.
    """
    for first, second, third in run_world(world_size, _gradients_of_three_passes):
        assert (first == second) is (world_size <= 2)
        assert second == third
