# %% [markdown] tags=["title"]
# # Exercise 15: cut the model itself
#
# 75 minutes, after lesson `15_beyond_ddp`.
# Stuck? `hint("15.1")` gives the next hint.

# %% tags=["setup", "nbval-ignore-output"]
from ddp_lessons import start_ranks
from ddp_lessons.checks import beyond_ddp as check
from ddp_lessons.checks import hint

ranks = start_ranks(4)

# %% [markdown] tags=["task"]
# ## 15.1 A layer that is whole only while it computes
#
# Write a module that computes `x @ weight.T`, and whose weight is fully sharded. `weight`, (out,
# in), is a tensor, the same on all ranks; `x` is (N, in), and each rank has its own.
#
# - `parameters()` are this rank's part of the weight, at most ceil(out / w) rows or as many
#   numbers; cut it as you like. An optimizer will step on them.
# - Forward returns the output of the whole weight, as it is now.
# - Backward leaves the gradient of `x`, if it needs one, and for the part its `.grad`: of the
#   weight's gradient, the **mean** over ranks.
# - When the module is made, after forward and after backward the whole weight, or its gradient,
#   must be in nobody's memory, autograd's included.
# - Ranks may all-gather and reduce-scatter. A forward gathers at most one whole weight, padded; a
#   backward at most one more, and reduces one.
#
# The two helpers below are one way; others are welcome. `all_gather(table, row)` and
# `reduce_scatter(row, table)` are those of lesson 13; they take a flat `row`. The number of rows may
# not divide by the ranks.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist
from torch import nn
from ddp_lessons.sharded_optimizer import all_gather, reduce_scatter


def whole(part, shape):
    """
    Return the weight, of that shape, from the parts of all ranks.
    """
    # solution
    table = part.new_empty(dist.get_world_size(), part.numel())
    all_gather(table, part.detach())
    return table.view(-1)[: shape.numel()].view(shape)
    # end of solution


class ShardedMatmul(torch.autograd.Function):
    """
    Multiply by a weight that is gathered, and gathered again in backward.
    """

    @staticmethod
    def forward(ctx, x, part, shape):
        """
        Return x @ weight.T, and keep in ctx what backward needs.
        """
        # solution
        ctx.save_for_backward(x, part)
        ctx.shape = shape
        return x @ whole(part, shape).T
        # end of solution

    @staticmethod
    def backward(ctx, gradient):
        """
        Return the gradients of x, of part, and None for the shape, which has none.
        """
        # solution
        x, part = ctx.saved_tensors
        of_x = gradient @ whole(part, ctx.shape)
        world_size = dist.get_world_size()
        table = part.new_zeros(world_size, part.numel())
        table.view(-1)[: ctx.shape.numel()] = (gradient.T @ x).flatten()
        row = torch.empty_like(part)
        reduce_scatter(row, table)
        return of_x, row / world_size, None
        # end of solution


class ShardedLinear(nn.Module):
    """
    Compute x @ weight.T with a weight of which each rank keeps a part.
    """

    def __init__(self, weight):
        super().__init__()
        # solution
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.shape = weight.shape
        length = -(-weight.numel() // world_size)
        table = weight.new_zeros(world_size, length)
        table.view(-1)[: weight.numel()] = weight.flatten()
        self.part = nn.Parameter(table[rank].clone())
        # end of solution

    def forward(self, x):
        """
        Return (N, out).
        """
        # solution
        return ShardedMatmul.apply(x, self.part, self.shape)
        # end of solution


# %% tags=["check"]
check.ShardedLinear()

# %% [markdown] tags=["task"]
# The numbers that each rank keeps, and how many more were in its memory after the first forward
# and backward of your run.

# %% tags=["picture"]
check.ShardedLinear.picture()

# %% tags=["teardown"]
ranks.stop()
