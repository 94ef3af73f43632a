"""
A small float64 model and samples for each rank and step, for the tests of asynchronous training.
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss

RATE = 0.05


def toy_model():
    """
    Return a model of 3 features with a frozen parameter, the same on every rank.
    """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    model[0].bias.requires_grad_(False)
    return model


def batch(rank, step):
    """
    Return inputs (5, 3) and targets (5, 1) of one rank's step.
    """
    generator = torch.Generator().manual_seed(1000 * rank + step)
    numbers = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    return numbers[:, :3], numbers[:, 3:]


def backward(model, rank, step):
    """
    Add the gradient of one rank's step to `.grad`.
    """
    inputs, targets = batch(rank, step)
    mse_loss(model(inputs), targets).backward()


def sgd(model, momentum=0.0):
    """
    Return an SGD of a model's trained parameters.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(parameters, lr=RATE, momentum=momentum)


def near(numbers, expected):
    """
    Return whether float64 numbers of about 1 agree within the rounding of some hundred operations.
    """
    one, other = (torch.as_tensor(it, dtype=torch.float64) for it in (numbers, expected))
    return bool(((one - other).abs() <= 1e-12).all())
