"""
Parameters, and gradients whose mean over ranks is exact, for the tests of sharded optimizers.

Legend: P parameters; w ranks. Gradients are whole numbers from 1 to 9 whose sign is the same on all
ranks. So their sum is exact, and no mean is near 0, where Adam would amplify a rounding error.
"""

import torch
from torch import nn

SHAPES = [(5, 3), (7,), (), (1,), (0,), (2, 3, 2), (6, 4)]
"""
Shapes of parameters: only one size is a multiple of 4, one parameter is empty, and some have fewer
numbers than there are ranks.
"""


def generator(*facts):
    """
    Return a generator of random numbers whose seed is made of the given whole numbers.
    """
    return torch.Generator().manual_seed(sum(100**place * fact for place, fact in enumerate(facts)))


def parameters(dtype=torch.float64, shapes=SHAPES):
    """
    Return parameters of several shapes, the same on every rank. The last, if it has two dimensions,
    is transposed in memory.
    """
    rng = generator(1)
    made = [torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for shape in shapes]
    if len(made[-1].shape) == 2:
        made[-1] = made[-1].T.contiguous().T
    return [nn.Parameter(tensor) for tensor in made]


def gradient(shape, place, step, rank, dtype=torch.float64):
    """
    Return one rank's gradient of a parameter in a step: whole numbers, never 0.
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
    Run a real backward pass that adds a rank's gradients, so that hooks see them. Return the loss.
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
    Train one optimizer on the mean gradients, and return the parameters and the optimizer.
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
