"""
Cut a model into stages.

Shapes: a stage takes (n, *s) and returns (n, *t), where n are the samples of a microbatch, s the
shape of a sample on its way in, and t that of the next stage's.
"""

import copy
from dataclasses import dataclass

import torch
from torch import nn

from ...costs import chunk_bounds
from ...errors import BadInput


@dataclass(frozen=True)
class Stage:
    """
    Hold a stage, and what comes into it.

    Args:
        module: Its layers.
        number: Which stage it is, from 0.
        shape: Of one sample as it comes in.
        dtype: Of the numbers that come in.
    """

    module: nn.Module
    number: int
    shape: torch.Size
    dtype: torch.dtype


def cut(model: nn.Sequential, num_stages: int, inputs: torch.Tensor) -> list[Stage]:
    """
    Cut a model into stages of as many layers, in order; the first ones may have one more.

    What a stage gets is found on the meta device, where tensors have shapes and no numbers: a model
    that is too large to run costs nothing.

    Args:
        model: An `nn.Sequential` of its layers. The stages hold the same layers, no copies.
        num_stages: How many stages there are to be.
        inputs: Inputs (n, ...) such as the model takes.

    Returns:
        list of Stage: In order. Rank r of w takes stages r, r + w and so on: `stages[r::w]`.

    Raises:
        BadInput: The model is no sequence of layers, or has fewer than stages.

    Lesson: 15_beyond_ddp.
    """
    if not isinstance(model, nn.Sequential) or not 1 <= num_stages <= len(model):
        what = f"{len(model)} layers" if isinstance(model, nn.Sequential) else type(model).__name__
        raise BadInput(
            f"No such cut: expected an nn.Sequential of {num_stages} layers or more, and 1 stage "
            f"or more (got {what}). Make its layers the entries of an nn.Sequential."
        )
    stages, at = [], torch.empty_like(inputs[:1], device="meta")
    for number, (start, stop) in enumerate(chunk_bounds(len(model), num_stages)):
        stages.append(Stage(model[start:stop], number, at.shape[1:], at.dtype))
        with torch.no_grad():
            at = copy.deepcopy(model[start:stop]).to("meta").eval()(at)
    return stages
