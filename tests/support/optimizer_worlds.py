"""
Parameters and gradients of which the mean over ranks has no rounding, for sharded optimizers.

Legend: P parameters; w ranks. Gradients are whole numbers from 1 to 9 with a sign that ranks share:
their sum is exact, and no mean is near 0, where Adam would make much of a last digit.
"""

import torch
from torch import nn

SHAPES = [(5, 3), (7,), (), (1,), (0,), (2, 3, 2), (6, 4)]
"""
Of the sizes none but one is a multiple of 4; one is empty, and one has more ranks than numbers.
"""


def generator(*facts):
    """
    Return a generator of random numbers that the facts name.
    """
    return torch.Generator().manual_seed(sum(100**place * fact for place, fact in enumerate(facts)))


def parameters(dtype=torch.float64, shapes=SHAPES):
    """
    Make parameters of several shapes, the same on every rank; the last of two dimensions is
    transposed in memory.
    """
    rng = generator(1)
    made = [torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for shape in shapes]
    if len(made[-1].shape) == 2:
        made[-1] = made[-1].T.contiguous().T
    return [nn.Parameter(tensor) for tensor in made]


def gradient(shape, place, step, rank, dtype=torch.float64):
    """
    Return a rank's gradient of a parameter in a step: whole numbers, never 0.
    """
    signs = torch.randint(0, 2, shape, generator=generator(place, step)) * 2 - 1
    amounts = torch.randint(1, 10, shape, generator=generator(place, step, rank, 1))
    return (signs * amounts).to(dtype)


def mean_gradient(shape, place, step, world_size, dtype=torch.float64):
    """
    Return the mean of all ranks' gradients.
    """
    return sum(gradient(shape, place, step, rank, dtype) for rank in range(world_size)) / world_size


def backward(params, step, rank):
    """
    Run a real backward that adds a rank's gradients, so that hooks see them.
    """
    total = torch.zeros((), dtype=torch.float64)
    for place, parameter in enumerate(params):
        if parameter.requires_grad:
            own = gradient(parameter.shape, place, step, rank, parameter.dtype)
            total = total + (parameter * own).sum()
    total.backward()
    return total.detach()


def plain_run(optimizer_class, settings, num_steps, world_size, params=None):
    """
    Return what one optimizer makes of the mean gradients: the parameters, and itself.
    """
    params = parameters() if params is None else params
    optimizer = optimizer_class(params, **settings)
    for step in range(num_steps):
        for place, parameter in enumerate(params):
            if parameter.requires_grad:
                mean = mean_gradient(parameter.shape, place, step, world_size, parameter.dtype)
                parameter.grad = mean
        optimizer.step()
    return params, optimizer
