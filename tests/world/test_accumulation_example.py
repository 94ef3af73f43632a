"""
The examples of lesson 07: a window's gradient, and the collectives that a run calls.
"""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from worlds import run_world

from ddp_lessons.accumulation.example import train_windows, window_gradient
from ddp_lessons.trace import collectives, trace


def _trained(rank, world_size):
    images = torch.arange(40 * 6.0).sin().view(40, 6)
    labels = (images.sum(dim=1) > 0).long()
    told = []
    for num_micro_batches, peak_rate in ((1, 0.0), (2, 0.0), (2, 0.5)):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(6, 2))
        with trace() as events:
            told.append(train_windows(model, images, labels, num_micro_batches, peak_rate))
        # In its second step DDP broadcasts its new order of buckets, once.
        told[-1] += ([call for call in collectives(events) if call != "broadcast"],)
    return told


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_train_windows_makes_a_step_and_an_all_reduce_for_each_window(world_size):
    """
    The learning rate needs no message of its own (claim C19). Five batches make three windows: two
    of two batches, and a last one of one batch.
    """
    for one, two, learning in run_world(world_size, _trained):
        assert one[1:] == (4 * 5, ["all_reduce"] * 20)
        assert two[1:] == learning[1:] == (4 * 3, ["all_reduce"] * 12)
        assert one[0] == two[0] > learning[0]  # a rate of 0 learns nothing


def test_window_gradient_is_that_of_the_whole_batch():
    """
    The window's gradient is that of the whole batch, although the micro-batches are unequal and
    `.grad` held another gradient before.
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 2)
    images, labels = torch.randn(28, 6), torch.randint(2, (28,))
    parts = zip(images.split(16), labels.split(16), strict=True)
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    whole = torch.cat([p.grad.flatten() for p in model.parameters()])
    got = window_gradient(model, parts)
    assert got.equal(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert (got - whole).norm() < 1e-5 * whole.norm()  # 28 samples in float32
