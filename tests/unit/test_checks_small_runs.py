"""
The gradient with which the capstone of part 1 is compared, and the rounding that it allows.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy

from ddp_lessons.checks.kit.shared.small_runs import gradient_of
from ddp_lessons.workloads import digits_batch, digits_model, load_digits


def by_autograd(model, images, labels):
    """
    Return torch's gradient of the mean cross-entropy as one tensor.
    """
    model.zero_grad()
    cross_entropy(model(images), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_samples", [1, 7, 32])
def test_gradient_agrees_with_autograd(dtype, num_samples):
    """
    The gradient agrees with torch's within the allowed rounding, so a right answer passes whatever
    the order of its sums.
    """
    images, labels = digits_batch(load_digits(), num_samples)
    model, images = digits_model(seed=1).to(dtype), images.to(dtype)
    right, error = gradient_of(list(model.parameters()), images, labels)
    got = by_autograd(model, images, labels).double()
    assert ((got - right).abs() <= error).all()


def test_the_rounding_allowed_is_far_below_a_mistake():
    """
    The allowed rounding is far smaller than a missing sample, so that an answer without one is
    refused.
    """
    images, labels = digits_batch(load_digits(), 32)
    model = digits_model(seed=1)
    right, error = gradient_of(list(model.parameters()), images, labels)
    without_one = by_autograd(model, images[1:], labels[1:]).double()
    assert ((without_one - right).abs() > error).float().mean() > 1 / 2
    assert error.norm() < right.norm() / 100
