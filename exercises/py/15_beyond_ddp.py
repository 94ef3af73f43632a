# %% [markdown] tags=["title"]
# # Exercise 15: share out the model itself
#
# 90 minutes, after lesson `15_beyond_ddp`.
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
#   weight's gradient, the **mean** over ranks. It adds to what is there, as any backward does.
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

# %% [markdown] tags=["task"]
# ## 15.2 Two layers, one all-reduce
#
# `first` and `second` are whole `nn.Linear`s with biases, the same on all ranks of `group`. None is
# the default group. Ranks compute second(relu(first(x))) together, for an `x` of shape (..., in)
# that all of them have.
#
# - In `__init__` make two layers, `column` and `row`, each with a `weight` and a `bias` as
#   `nn.Linear` has them, on the device of `first`. Of w ranks, the one with number r in the group
#   has the r-th of w equal parts: `column` of first's outputs, `row` of second's inputs. The
#   outputs of `first` divide by w. Each rank has the whole bias of `second`. These four are the
#   module's parameters.
# - When `first` and `second` are gone, a rank keeps the bytes of its parts, and 64 more at most.
# - `forward(x)` returns the output, (..., out), on every rank, with **one** all-reduce of as many
#   bytes as the output has.
# - In backward all ranks give the output the same gradient. Then the parts have their parts of
#   what one process would find, and `x.grad` is the whole one on every rank. It takes **one**
#   all-reduce of as many bytes as `x` has, and none if `x` wants no gradient.
#
# The lesson's layers would pass, but leave you nothing to do.

# %% tags=["answer"]
# %%px
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear


class Enter(torch.autograd.Function):
    """
    Stand before the first layer. You may do without this class, and without the next.
    """

    @staticmethod
    def forward(ctx, x, group):
        # solution
        ctx.group = group
        return x.view_as(x)
        # end of solution

    @staticmethod
    def backward(ctx, grad):
        # solution
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None
        # end of solution


class Leave(torch.autograd.Function):
    """
    Stand behind the second layer.
    """

    @staticmethod
    def forward(ctx, part, group):
        # solution
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total
        # end of solution

    @staticmethod
    def backward(ctx, grad):
        # solution
        return grad, None
        # end of solution


class ParallelPair(nn.Module):
    """
    Compute second(relu(first(x))), each rank with a part of both layers.
    """

    def __init__(self, first, second, group=None):
        super().__init__()
        # solution
        self.group = group
        rank, w = dist.get_rank(group), dist.get_world_size(group)
        self.column, self.row = nn.Module(), nn.Module()
        for layer, name, whole, dim in (
            (self.column, "weight", first.weight, 0),
            (self.column, "bias", first.bias, 0),
            (self.row, "weight", second.weight, 1),
        ):
            part = whole.detach().chunk(w, dim)[rank].clone()
            setattr(layer, name, nn.Parameter(part))
        self.row.bias = nn.Parameter(second.bias.detach().clone())
        # end of solution

    def forward(self, x):
        """
        Return the output, the same on every rank.
        """
        # solution
        x = Enter.apply(x, self.group)
        hidden = linear(x, self.column.weight, self.column.bias).relu()
        part = linear(hidden, self.row.weight)
        return Leave.apply(part, self.group) + self.row.bias
        # end of solution

# %% tags=["check"]
check.ParallelPair()

# %% [markdown] tags=["task"]
# The shapes that each rank has in your run, the bytes that it keeps, and those of both layers.

# %% tags=["picture"]
check.ParallelPair.picture()

# %% [markdown] tags=["task"]
# ## 15.3 A 1F1B schedule
#
# A pipeline has `num_stages` stages, and a step's batch is cut into `num_microbatches`. Return what
# stage `stage` does, in order: a list of pairs such as ("F", 0), the forward of microbatch 0, and
# ("B", 0), its backward. Stages and microbatches are counted from 0.
#
# - Each microbatch goes once forward and once backward through each stage. Their order is yours, as
#   long as nobody waits for ever: a forward needs that of the stage before, and a backward needs
#   its own forward and the backward of the stage behind.
# - A stage **holds** a microbatch from its forward to its backward. The last stage never holds more
#   than 1, the one before it no more than 2, and so on.
# - If a forward takes 1 tick and a backward 2, the last one is done as early as in GPipe: after 3 (M
#   + w - 1) ticks, for M microbatches and w stages. No table is faster.
#
# There may be fewer microbatches than stages, and there may be one stage. Every rank asks for its
# own stage, and nobody sends anything. The check asks about more stages than there are ranks, too.
# Where there are as many, real ranks run your table on the lesson's engine. The lesson's table
# would pass, but leave you nothing to do.

# %% tags=["answer"]
# %%px


def stage_row(stage, num_stages, num_microbatches):
    """
    Return what a stage does, a list of pairs (kind, microbatch).
    """
    # solution
    num_first = min(num_stages - stage, num_microbatches)
    row = [("F", number) for number in range(num_first)]
    for number in range(num_microbatches):
        row.append(("B", number))
        if num_first + number < num_microbatches:
            row.append(("F", num_first + number))
    return row
    # end of solution

# %% tags=["check"]
check.stage_row()

# %% [markdown] tags=["task"]
# Your timetable: 4 stages, 8 microbatches.

# %% tags=["picture"]
check.stage_row.picture()

# %% [markdown] tags=["task"]
# ## 15.4 Choose a mesh
#
# A model is to be trained on d x t x p ranks, for the axes data, tensor and pipeline. Return a tuple
# (d, t, p, seconds): the mesh with the shortest step of those that are possible, and that step's
# seconds. Return None if no mesh is possible. `job` is a dictionary:
#
# | key | what it is |
# | --- | --- |
# | `num_ranks`, `ranks_per_host` | the ranks that there are, and how many a host has: powers of two |
# | `memory_bytes` | what a rank can hold of the state |
# | `num_layers`, `num_heads` | layers of one shape; the heads of each, between which it can be cut |
# | `num_micro_batches` | M, how many a step has |
# | `state_bytes`, `gradient_bytes` | of the whole model: all that is kept; its gradients alone |
# | `activation_bytes` | what one layer hands to the next, for the whole batch |
# | `alone_s` | seconds that one rank would compute for a step |
# | `inside`, `between` | a pair each: latency in s, bandwidth in bytes/s, of the link in a host, and of that between hosts |
#
# **Possible** is a mesh of all ranks whose t divides the heads, whose p divides the layers, and on
# which a rank's part of the state fits. Cut layers and stages share the state out evenly. Ranks of
# the data axis hold copies of it, and share the batch out evenly.
#
# **The seconds** of a step are those of four parts, one after the other:
#
# - all ranks share the compute; a pipeline's bubble makes it (M + p - 1) / M times as long;
# - along the tensor axis, for each micro-batch and each layer that a rank has a part of, four
#   all-reduces of that micro-batch's activations;
# - along the pipeline, if there are two stages or more, two messages for each micro-batch, with its
#   activations;
# - along the data axis, one all-reduce of the gradients that a rank has.
#
# A message of n bytes takes latency + n / bandwidth. An all-reduce among k ranks is a ring: 2 (k - 1)
# messages of n / k bytes, one after the other.
#
# **Which link**: the t ranks of a cut layer are neighbours. p of those groups one after the other
# make a whole model, and then comes the next copy: rank = (place in data x p + stage) x t + place in
# tensor. An axis has the link `inside` if each of its lines is in one host, and otherwise the link
# `between`.

# %% tags=["answer"]
# %%px


def choose_mesh(job):
    """
    Return data, tensor, pipeline and the seconds of a step, or None.
    """

    # solution
    def message_s(num_bytes, span):
        is_near = span <= job["ranks_per_host"]
        latency, bandwidth = job["inside" if is_near else "between"]
        return latency + num_bytes / bandwidth

    def ring_s(k, num_bytes, span):
        return 2 * (k - 1) * message_s(num_bytes / k, span)

    def seconds(d, t, p):
        num_micro = job["num_micro_batches"]
        activations = job["activation_bytes"] / d / num_micro
        compute = job["alone_s"] / (d * t * p) * (num_micro + p - 1) / num_micro
        tensor = num_micro * 4 * job["num_layers"] / p * ring_s(t, activations, t)
        pipeline = (p > 1) * num_micro * 2 * message_s(activations, t * p)
        data = ring_s(d, job["gradient_bytes"] / (t * p), d * t * p)
        return compute + tensor + pipeline + data

    found = []
    sizes = range(1, job["num_ranks"] + 1)
    for t in (t for t in sizes if job["num_heads"] % t == 0):
        for p in (p for p in sizes if job["num_layers"] % p == 0):
            fits = job["state_bytes"] <= job["memory_bytes"] * t * p
            if fits and job["num_ranks"] % (t * p) == 0:
                d = job["num_ranks"] // (t * p)
                found.append((d, t, p, seconds(d, t, p)))
    return min(found, key=lambda mesh: mesh[3], default=None)
    # end of solution

# %% tags=["check"]
check.choose_mesh()

# %% [markdown] tags=["task"]
# Your mesh for the first job, with the host of each rank.

# %% tags=["picture"]
check.choose_mesh.picture()

# %% tags=["teardown"]
ranks.stop()
