"""
The naive way: cut every layer by its outputs, and gather them before the next one.

Shapes: x (..., in); weight (out / w, in); y (..., out); w ranks.

It is right, and each layer alone is whole for who uses it. But each layer sends: two of them make
two collectives forward, and two backward. And what lies between them is whole on every rank, and
so is what backward keeps of it.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from .cutting import cut_parameter
from .operators import enter


class _Gather(torch.autograd.Function):
    """
    All-gather forward; backward each rank takes the part that was its own.
    """

    @staticmethod
    def forward(ctx, part, group):
        ctx.group = group
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        world_size, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        return grad.chunk(world_size, dim=-1)[rank], None


class GatheringLinear(nn.Module):
    """
    Compute a part of a linear layer's outputs on each rank, and gather them.

    Collective: every rank must call forward; and backward, if the input wants a gradient.

    Args:
        full: The nn.Linear, the same on every rank. It is not kept.
        group: The process group, or None for the default group.

    Raises:
        BadInput: Its outputs do not divide.

    Lesson: 15_beyond_ddp.
    """

    def __init__(self, full: nn.Linear, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.group = group
        # There is a weight.
        self.weight: nn.Parameter = cut_parameter(full.weight, 0, group)  # type: ignore[assignment]
        self.bias = cut_parameter(full.bias, 0, group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """
        Return all outputs, (..., out), on every rank.
        """
        part = linear(enter(x, self.group), self.weight, self.bias)  # (..., out / w)
        return _Gather.apply(part, self.group)
