"""
Answers to task 15.1.
"""

from bank import Answer, changed

_IMPORTS = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from ddp_lessons.sharded_optimizer import all_gather, reduce_scatter


"""

_FUNCTION = (
    _IMPORTS
    + """\
class Mul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, part, num_rows):
        full = collect(part)
        ctx.num_rows = num_rows
        ctx.save_for_backward(x, part)
        return x @ full[:num_rows].T

    @staticmethod
    def backward(ctx, g):
        x, part = ctx.saved_tensors
        full = collect(part)
        gx = g @ full[:ctx.num_rows]
        w = dist.get_world_size()
        gw = torch.zeros_like(full)
        gw[:ctx.num_rows] = g.T @ x
        mine = torch.zeros_like(part)
        reduce_scatter(mine.view(-1), gw)
        return gx, mine / w, None


def collect(part):
    full = part.new_zeros(dist.get_world_size() * part.shape[0], part.shape[1])
    all_gather(full, part.detach().flatten())
    return full


class ShardedLinear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        w, r = dist.get_world_size(), dist.get_rank()
        self.num_rows = weight.shape[0]
        each = -(-self.num_rows // w)
        mine = weight.new_zeros(each, weight.shape[1])
        rows = weight[r * each : (r + 1) * each]
        mine[: len(rows)] = rows
        self.part = nn.Parameter(mine)

    def forward(self, x):
        return Mul.apply(x, self.part, self.num_rows)
"""
)

_CHECKPOINTED = (
    _IMPORTS
    + """\
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        rows = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, part.detach())
        return torch.cat(rows)

    @staticmethod
    def backward(ctx, g):
        w = dist.get_world_size()
        mine = g.new_empty(len(g) // w, g.shape[1])
        dist.reduce_scatter(mine, list(g.contiguous().chunk(w)))
        return mine / w


class ShardedLinear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        w, r = dist.get_world_size(), dist.get_rank()
        self.num_rows = len(weight)
        each = -(-self.num_rows // w)
        padding = weight.new_zeros(each * w - self.num_rows, weight.shape[1])
        self.part = nn.Parameter(torch.cat([weight, padding]).chunk(w)[r].clone())

    def product(self, x, part):
        return x @ Gather.apply(part)[: self.num_rows].T

    def forward(self, x):
        return checkpoint(self.product, x, self.part, use_reentrant=False)
"""
)

_REFILLED = (
    _IMPORTS
    + """\
class ShardedLinear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.w, self.shape = dist.get_world_size(), weight.shape
        each = -(-weight.numel() // self.w)
        flat = weight.new_zeros(self.w * each)
        flat[: weight.numel()] = weight.flatten()
        self.part = nn.Parameter(flat.view(self.w, each)[dist.get_rank()].clone())
        flat.untyped_storage().resize_(0)
        self.flat = flat

    def fill(self, *_):
        self.flat.untyped_storage().resize_(self.flat.nbytes)
        all_gather(self.flat, self.part.detach())

    def empty(self):
        self.flat.untyped_storage().resize_(0)

    def reduce(self, weight):
        padded = self.part.new_zeros(self.w * len(self.part)).detach()
        padded[: weight.numel()] = weight.grad.flatten()
        weight.grad = None
        row = torch.empty_like(self.part).detach()
        reduce_scatter(row, padded)
        row /= self.w
        self.part.grad = row if self.part.grad is None else self.part.grad + row
        self.empty()

    def forward(self, x):
        self.fill()
        weight = self.flat.data[: self.shape.numel()].view(self.shape).requires_grad_()
        weight.register_post_accumulate_grad_hook(self.reduce)
        out = x @ weight.T
        out.register_hook(self.fill)
        self.empty()
        return out
"""
)


def _altered(name, mistake, *pairs, source=_FUNCTION):
    return Answer("15.1", name, mistake, changed(source, *pairs))


_PART = "        self.part = nn.Parameter(mine)\n"
_REDUCE = "        reduce_scatter(mine.view(-1), gw)\n"

ANSWERS = [
    Answer("15.1", "gathers inside a checkpoint", None, _CHECKPOINTED),
    Answer("15.1", "empties a storage and fills it again by a hook", None, _REFILLED),
    Answer("15.1", "cuts by rows in a function", None, _FUNCTION),
    _altered(
        "puts the gradient in the place of what is there",
        "not-added",
        ("row if self.part.grad is None else self.part.grad + row", "row"),
        source=_REFILLED,
    ),
    Answer(
        "15.1",
        "is a plain linear layer",
        "whole-parameters",
        _IMPORTS
        + """\
class ShardedLinear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return x @ self.weight.T
""",
    ),
    _altered("keeps a view", "built", (_PART, "        self.part = nn.Parameter(rows)\n")),
    _altered(
        "keeps its part as a plain tensor",
        "no-parameters",
        (_PART, "        self.part = mine.requires_grad_()\n"),
    ),
    _altered(
        "saves the whole weight for backward",
        "not-freed",
        ("save_for_backward(x, part)", "save_for_backward(x, part, full)"),
        ("x, part = ctx.saved_tensors", "x, part, full = ctx.saved_tensors"),
        ("        full = collect(part)\n        gx", "        gx"),
    ),
    _altered(
        "returns the padding, too", "shape", ("return x @ full[:num_rows].T", "return x @ full.T")
    ),
    _altered(
        "computes without autograd",
        "no-gradient",
        (
            "        return Mul.apply(x, self.part, self.num_rows)\n",
            "        with torch.no_grad():\n"
            "            return x @ collect(self.part)[: self.num_rows].T\n",
        ),
    ),
    _altered(
        "thinks of the weight only",
        "input-gradient",
        ("return gx, mine / w, None", "return None, mine / w, None"),
    ),
    _altered("sums up", "summed", ("mine / w, None", "mine, None")),
    _altered(
        "takes its own gradient",
        "not-averaged",
        (_REDUCE, "        mine = gw.view(w, *part.shape)[dist.get_rank()].clone() * w\n"),
    ),
    _altered(
        "all-reduces the gradient",
        "forbidden",
        (
            _REDUCE,
            "        dist.all_reduce(gw)\n"
            "        mine = gw.view(w, *part.shape)[dist.get_rank()].clone()\n",
        ),
    ),
    _altered(
        "gathers for each sample",
        "cost",
        (
            "return x @ full[:num_rows].T",
            "return torch.stack([one @ collect(part)[:num_rows].T for one in x])",
        ),
    ),
    _altered(
        "takes it that rows divide by ranks",
        "raised",
        ("weight[r * each : (r + 1) * each]", "weight.view(w, -1, len(weight[0]))[r]"),
    ),
    _altered(
        "lets the first rank start alone",
        "deadlock",
        (
            "        return Mul.apply",
            """\
        if dist.get_rank() == 0:
            collect(self.part)
        return Mul.apply""",
        ),
    ),
    _altered(
        "does not wait for the gather",
        "unwaited",
        ("part.detach().flatten())", "part.detach().flatten(), async_op=True)"),
    ),
    _altered(
        "forgets the rows that are left over",
        "values",
        (
            "        rows = weight[r * each : (r + 1) * each]\n",
            "        rows = weight[r * (self.num_rows // w) :][: each]\n",
        ),
    ),
]
