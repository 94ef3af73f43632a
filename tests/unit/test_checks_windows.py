"""
The linear model that exercises train, and the right gradient of one of its windows.
"""

import pytest
import torch
from torch.nn.functional import mse_loss

from ddp_lessons.checks.accumulation.windows import NUM_FEATURES, WindowGradients, batches_of
from ddp_lessons.checks.kit import Case
from ddp_lessons.checks.kit.shared.regression import (
    Regression,
    batch_gradients,
    gradient,
    trained,
)

DTYPES = ["float32", "float64"]


def case_of(sizes, dtype="float64", world_size=3):
    return Case(world_size, {"sizes": sizes, "dtype": dtype}, seed=5)


def model_of(case):
    return Regression(case, NUM_FEATURES, getattr(torch, case["dtype"]))


def added_up(case, weigh):
    """
    Return the gradient that autograd adds up over the batches of all ranks, each multiplied by
    `weigh(rank, number)`.
    """
    model = model_of(case)
    for rank in range(case.world_size):
        for number, (inputs, targets) in enumerate(batches_of(case, rank)):
            (mse_loss(model(inputs), targets) * weigh(rank, number)).backward()
    return gradient(model)


def window_of(case, k=None):
    weights, num_batches = trained(model_of(case)), len(case["sizes"])
    return WindowGradients(case, weights, range(num_batches), k or num_batches)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_is_autograds_within_the_error(dtype):
    """
    The gradient equals autograd's within the computed error, so that the check refuses no right
    answer and accepts no imprecise one.
    """
    case = case_of([4, 2], dtype, world_size=1)
    weights, batches = trained(model_of(case)), batches_of(case, 0)
    exact, error = batch_gradients(weights, batches, num_terms=6)
    unit = torch.finfo(weights.dtype).eps / 2
    for number in range(2):
        found = added_up(case, lambda _, other, number=number: float(other == number))
        assert ((found.double() - exact[number]).abs() <= error[number]).all()
        # An error of a thousand roundings would be noticed.
        assert (error[number] < 1000 * unit * exact[number].abs().max()).all()


def test_window_weighs_every_sample_alike():
    """
    With batches of unequal sizes, the window's gradient is the mean over all samples.
    """
    case = case_of([4, 4, 1])
    window = window_of(case)
    found = added_up(case, lambda _, number: case["sizes"][number] / 9 / 3)
    assert window.agrees(found, window.all())
    assert window.mistake(found * 3, rank=0) == "summed"
    assert window.mistake(found / 3, rank=0) == "divided-twice"


@pytest.mark.parametrize(
    ("mistake", "weigh"),
    [
        ("mean-of-means", lambda rank, number: 1 / 3 / 3),
        ("by-k", lambda rank, number: 1 / 4 / 3),
        ("undivided", lambda rank, number: 1 / 3),
        ("zeroed", lambda rank, number: (number == 2) / 4 / 3),
        ("no-sync", lambda rank, number: (rank == 1) / 4),
        (None, lambda rank, number: 0.3 + 0.1 * number),
    ],
)
def test_window_names_a_mistake(mistake, weigh):
    """
    Each mistake weights the batches in its own way. Weights that fit no mistake have no name.
    """
    case = case_of([4, 4, 1])
    window = window_of(case, k=4)
    found = added_up(case, weigh)
    assert not window.agrees(found, window.all())
    assert window.mistake(found, rank=1) == mistake


def test_model_has_a_frozen_parameter_and_batches_own_their_memory():
    """
    The model has a frozen parameter, so that an answer that takes every parameter's gradient fails.
    Batches are copies, because a slice would keep all batches alive.
    """
    case = case_of([4, 2])
    assert [p.requires_grad for p in model_of(case).parameters()] == [False, True, True]
    memory = [one.untyped_storage() for pair in batches_of(case, 0) for one in pair]
    assert [one.nbytes() for one in memory] == [8 * n for n in (4 * 6, 4, 2 * 6, 2)]
    assert not torch.equal(batches_of(case, 0)[0][0], batches_of(case, 1)[0][0])
