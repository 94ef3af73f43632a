"""
Answers to task 15.2.
"""

from bank import Answer, changing

PAIR = """\
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x * 1

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None


class ParallelPair(nn.Module):
    def __init__(self, first, second, group=None):
        super().__init__()
        self.group = group
        self.w = dist.get_world_size(group)
        self.r = dist.get_rank(group)
        self.k = first.out_features // self.w
        mine = slice(self.r * self.k, (self.r + 1) * self.k)
        like = {"device": first.weight.device, "dtype": first.weight.dtype}
        self.column = nn.Linear(first.in_features, self.k, **like)
        self.row = nn.Linear(self.k, second.out_features, **like)
        with torch.no_grad():
            self.column.weight.copy_(first.weight[mine])
            self.column.bias.copy_(first.bias[mine])
            self.row.weight.copy_(second.weight[:, mine])
            self.row.bias.copy_(second.bias)

    def forward(self, x):
        x = SumBackward.apply(x, self.group)
        h = F.relu(self.column(x))
        y = F.linear(h, self.row.weight)
        y = SumForward.apply(y, self.group)
        return y + self.row.bias
"""

altered = changing({"15.2": PAIR})

_COPIES = """\
        with torch.no_grad():
            self.column.weight.copy_(first.weight[mine])
"""
_ENTER = "        x = SumBackward.apply(x, self.group)\n"
_LEAVE = "        y = SumForward.apply(y, self.group)\n"
_OWN_BIAS = "        y = F.linear(h, self.row.weight)\n"
_HAND_ON = "    def backward(ctx, g):\n        return g, None\n"

ANSWERS = [
    altered("15.2", "forgets the backward's sum", "input-partial", (_ENTER, "")),
    altered("15.2", "forgets the forward's sum", "no-sum", (_LEAVE, "")),
    altered(
        "15.2",
        "adds the bias on every rank",
        "bias-often",
        ("F.linear(h, self.row.weight)", "self.row(h)"),
        ("return y + self.row.bias", "return y"),
    ),
    altered("15.2", "forgets the bias", "bias-never", ("return y + self.row.bias", "return y")),
    altered(
        "15.2",
        "adds a share of the bias before the sum",
        "bias-gradient",
        (_OWN_BIAS, "        y = F.linear(h, self.row.weight) + self.row.bias / self.w\n"),
        ("return y + self.row.bias", "return y"),
    ),
    altered(
        "15.2",
        "averages",
        "averaged",
        ("return y + self.row.bias", "return y / self.w + self.row.bias"),
    ),
    altered(
        "15.2",
        "sums by torch.distributed.nn",
        "times",
        (_LEAVE, "        y = torch.distributed.nn.all_reduce(y, group=self.group)\n"),
        ("import torch\n", "import torch\nimport torch.distributed.nn\n"),
    ),
    altered(
        "15.2",
        "sums in both backwards and divides again",
        "backward-calls",
        (
            _HAND_ON,
            "    def backward(ctx, g):\n        g = g.clone()\n"
            "        dist.all_reduce(g, group=ctx.group)\n"
            "        return g / dist.get_world_size(ctx.group), None\n",
        ),
    ),
    altered(
        "15.2",
        "keeps views of the weights",
        "held",
        (
            _COPIES,
            "        self.column.weight = nn.Parameter(first.weight.detach()[mine])\n"
            "        with torch.no_grad():\n",
        ),
    ),
    altered(
        "15.2",
        "keeps the layers as modules",
        "not-trained",
        (
            "        self.group = group\n        self.w",
            "        self.first = first\n        self.group = group\n        self.w",
        ),
    ),
    altered(
        "15.2",
        "has names of its own",
        "no-part",
        ("self.column", "self.up"),
        ("self.row", "self.down"),
    ),
    altered(
        "15.2",
        "keeps the whole bias of the first",
        "whole",
        (
            "self.column.bias.copy_(first.bias[mine])",
            "self.column.bias = nn.Parameter(first.bias.detach().clone())",
        ),
        (
            "F.relu(self.column(x))",
            "F.relu(x @ self.column.weight.T + self.column.bias[self.r * self.k :][: self.k])",
        ),
    ),
    altered(
        "15.2",
        "cuts the second layer by its outputs",
        "other-part",
        (
            "self.row.weight.copy_(second.weight[:, mine])",
            "self.row.weight = nn.Parameter(second.weight.detach().chunk(self.w)[self.r].clone())",
        ),
    ),
    altered(
        "15.2",
        "gathers the parts and adds them up",
        "forward-calls",
        (
            _LEAVE,
            "        parts = [torch.empty_like(y) for _ in range(self.w)]\n"
            "        dist.all_gather(parts, y.detach(), group=self.group)\n"
            "        y = y + sum(parts) - y.detach()\n",
        ),
    ),
    altered(
        "15.2",
        "takes the default group",
        "other-group",
        ("dist.all_reduce(y, group=group)", "dist.all_reduce(y)"),
    ),
    altered(
        "15.2",
        "takes its number among all",
        "raised",
        ("self.r = dist.get_rank(group)", "self.r = range(self.w)[dist.get_rank()]"),
    ),
    altered("15.2", "forgets relu", "no-relu", ("F.relu(self.column(x))", "self.column(x)")),
    altered(
        "15.2",
        "puts relu at the end",
        "values",
        ("F.relu(self.column(x))", "self.column(x)"),
        ("return y + self.row.bias", "return F.relu(y + self.row.bias)"),
    ),
    altered(
        "15.2",
        "sums behind autograd's back",
        "no-gradient",
        (_LEAVE, "        y = y.detach().clone()\n        dist.all_reduce(y, group=self.group)\n"),
    ),
    altered(
        "15.2",
        "sums nobody's gradient",
        "needless",
        (_ENTER, "        x = x if x.requires_grad else x.detach().requires_grad_()\n" + _ENTER),
    ),
    altered(
        "15.2",
        "averages the gradients of weights, as DDP",
        "weights-summed",
        (
            "            self.row.bias.copy_(second.bias)\n",
            "            self.row.bias.copy_(second.bias)\n"
            "        for p in self.parameters():\n            p.register_hook(self.mean)\n\n"
            "    def mean(self, g):\n        g = g.clone()\n"
            "        dist.all_reduce(g, group=self.group)\n"
            "        return g / self.w\n",
        ),
    ),
    altered(
        "15.2",
        "hands the gradient to one rank only",
        "gradient",
        (
            _HAND_ON,
            "    def backward(ctx, g):\n        return g * (dist.get_rank(ctx.group) == 0), None\n",
        ),
    ),
    altered(
        "15.2", "returns nothing", "nothing", ("return y + self.row.bias", "y + self.row.bias")
    ),
    Answer(
        "15.2",
        "sums in place, and by a hook",
        None,
        """\
import torch, torch.distributed as dist
from torch import nn


class Piece(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.register_parameter("weight", nn.Parameter(weight.detach().clone()))
        self.register_parameter("bias", nn.Parameter(bias.detach().clone()))


class ParallelPair(nn.Module):
    def __init__(self, first, second, group=None):
        super().__init__()
        self.ranks = group
        place, num = dist.get_rank(group), dist.get_world_size(group)
        self.column = Piece(
            first.weight.tensor_split(num)[place], first.bias.tensor_split(num)[place]
        )
        self.row = Piece(second.weight.tensor_split(num, 1)[place], second.bias)

    def forward(self, x):
        if x.requires_grad:
            x = x.view_as(x)
            x.register_hook(self.total)
        part = (x @ self.column.weight.T + self.column.bias).clamp(min=0) @ self.row.weight.T
        with torch.no_grad():
            others = self.total(part) - part
        return part + others + self.row.bias

    def total(self, gradient):
        gradient = gradient.detach().clone()
        dist.all_reduce(gradient, group=self.ranks)
        return gradient
""",
    ),
    Answer(
        "15.2",
        "takes its time to cut",
        None,
        """\
import time

from torch import nn

from ddp_lessons.beyond_ddp.tensor_parallel import ColumnParallelLinear, RowParallelLinear


class ParallelPair(nn.Module):
    def __init__(self, first, second, group=None):
        super().__init__()
        time.sleep(0.3)
        self.column = ColumnParallelLinear(first, group)
        self.row = RowParallelLinear(second, group)

    def forward(self, x):
        return self.row(self.column(x).relu())
""",
    ),
    Answer(
        "15.2",
        "takes the lesson's layers",
        None,
        """\
from torch import nn

from ddp_lessons.beyond_ddp.tensor_parallel import ColumnParallelLinear, RowParallelLinear


class ParallelPair(nn.Module):
    def __init__(self, first, second, group=None):
        super().__init__()
        self.column = ColumnParallelLinear(first, group)
        self.row = RowParallelLinear(second, group)

    def forward(self, x):
        return self.row(self.column(x).relu())
""",
    ),
]
