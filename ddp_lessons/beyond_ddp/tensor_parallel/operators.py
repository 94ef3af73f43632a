"""
The two functions between ranks that have different parts of a layer: each is the other's backward.

Shapes: x and y are of any shape, the same on all w ranks of the group.

    function   forward                       backward
    enter      x goes on as it is            gradients of all ranks are summed: an all-reduce
    leave      parts are summed: an all-     the gradient goes on as it is
               reduce

Between the two each rank has numbers of its own; outside of them all ranks have the same. A rank's
part of a layer gives a part of the input's gradient, so `enter` sums them. Behind `leave` all ranks
compute the same loss of the same sum, so each part's gradient is the sum's, and nobody sends.
"""

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable


class _Enter(torch.autograd.Function):
    """
    Identity forward, all-reduce backward.
    """

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return _sum(grad, ctx.group), None


class _Leave(torch.autograd.Function):
    """
    All-reduce forward, identity backward.
    """

    @staticmethod
    def forward(ctx, part, group):
        return _sum(part, group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def _sum(tensor, group):
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def enter(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """
    Hand an input that all ranks have to layers of which each rank has a part.

    Collective: its backward is, if x wants a gradient. Then every rank must run it.

    Args:
        x: The same on every rank.
        group: The process group, or None for the default group.

    Returns:
        torch.Tensor: x. Its gradient will be the sum of all ranks' gradients.

    Source: M. Shoeybi and others, "Megatron-LM", 2019, section 3: f. Lesson: 15_beyond_ddp.
    """
    return _Enter.apply(x, group)


def leave(part: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """
    Sum the parts that ranks have computed, so that all have the whole.

    Collective: every rank must call it. Its backward sends nothing.

    Args:
        part: This rank's part of a sum.
        group: The process group, or None for the default group.

    Returns:
        torch.Tensor: The sum, the same on every rank.

    Source: M. Shoeybi and others, "Megatron-LM", 2019, section 3: g. Lesson: 15_beyond_ddp.
    """
    return _Leave.apply(part, group)
