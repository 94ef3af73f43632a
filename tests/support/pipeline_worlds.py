"""
A small deep float64 model, cut into stages for each rank, and one process's result on the same
batch.

Legend: N samples of F numbers. Blocks have unequal widths, so that stages send outputs of different
sizes.
"""

import itertools

import torch
from torch import nn
from torch.nn.functional import mse_loss

from ddp_lessons.beyond_ddp.pipeline import cut

WIDTHS = [6, 5, 9, 4, 7, 8, 3, 6, 2]
DTYPE = torch.float64


def model(dtype=DTYPE):
    """
    Return a model of eight blocks, the same everywhere.
    """
    rng = torch.Generator().manual_seed(3)
    blocks = []
    for num_in, num_out in itertools.pairwise(WIDTHS):
        linear = nn.Linear(num_in, num_out, dtype=dtype)
        with torch.no_grad():
            for parameter in linear.parameters():
                numbers = torch.randn(parameter.shape, generator=rng, dtype=DTYPE)
                parameter.copy_(numbers / num_in**0.5)
        blocks.append(nn.Sequential(linear, nn.Tanh()))
    return nn.Sequential(*blocks)


def batch(num_samples, dtype=DTYPE):
    """
    Return inputs (N, 6) and targets (N, 2), the same everywhere.
    """
    rng = torch.Generator().manual_seed(4)
    inputs, targets = (torch.randn(num_samples, n, generator=rng, dtype=DTYPE) for n in (6, 2))
    return inputs.to(dtype), targets.to(dtype)


def stages_of(rank, world_size, num_parts=1, dtype=DTYPE):
    """
    Return the stages of a rank.
    """
    return cut(model(dtype), world_size * num_parts, batch(1, dtype)[0])[rank::world_size]


def gradients_of(stages):
    """
    Return the gradients of a rank's stages, by the number of the stage.
    """
    return {stage.number: [p.grad.clone() for p in stage.module.parameters()] for stage in stages}


def one_process(num_samples, num_microbatches, num_stages):
    """
    Return the loss of the whole batch and its gradients by stage, computed by one process.

    With one microbatch this is a plain step. With more, the sums have the order of a pipeline.
    """
    whole = model()
    inputs, targets = batch(num_samples)
    total = torch.zeros((), dtype=DTYPE)
    pieces = zip(
        inputs.tensor_split(num_microbatches), targets.tensor_split(num_microbatches), strict=True
    )
    for x, y in pieces:
        loss = mse_loss(whole(x), y) * (len(x) / num_samples)
        loss.backward()
        total += loss.detach()
    return total, gradients_of(cut(whole, num_stages, inputs))
