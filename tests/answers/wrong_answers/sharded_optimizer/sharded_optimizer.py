"""
Answers to task 13.2.
"""

from bank import Answer, changed

from wrong_answers.sharded_optimizer.sources import IMPORTS, altered

_INNER = "self.inner = self.cls([inner_group], **self.settings)"
_REDUCE = """\
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
"""
_SEND = """\
        for p, owner in self.owner.items():
            dist.broadcast(p.data, owner)
"""
_SETTINGS = """\
        for group, inner in zip(self.param_groups, self.inner.param_groups):
            for key in group:
                if key != "params":
                    inner[key] = group[key]
"""
_MINE = """\
            if owner == dist.get_rank():
                mine.append(p)
"""

_COPIED = """\
            own["params"][0].copy_(self.mine(group, lambda p: p.detach()))
"""
_NOW = 'ps = [p for p in group["params"] if p.requires_grad]'
_FLAT = """\
class ShardedOptimizer(torch.optim.Optimizer):
    def __init__(self, params, optimizer_class, **settings):
        self.make = lambda groups: optimizer_class(groups, **settings)
        self.inner, self.trained = None, []
        super().__init__(params, {})

    def add_param_group(self, group):
        super().add_param_group(group)
        group = self.param_groups[-1]
        self.trained += [p for p in group["params"] if p.requires_grad]
        piece = torch.nn.Parameter(self.mine(group, lambda p: p.detach()))
        own = {**group, "params": [piece]}
        if self.inner is None:
            self.inner = self.make([own])
        else:
            self.inner.add_param_group(own)
        for key, value in self.inner.param_groups[-1].items():
            group.setdefault(key, value)

    def mine(self, group, of):
        w = dist.get_world_size()
        ps = [p for p in group["params"] if any(p is one for one in self.trained)]
        flat = [(p if of(p) is None else of(p)).flatten() for p in ps]
        flat = torch.cat(flat) if flat else torch.zeros(0, dtype=group["params"][0].dtype)
        flat = torch.cat([flat, flat.new_zeros(-len(flat) % w)])
        return flat.view(w, -1)[dist.get_rank()].clone() if len(flat) else flat

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        w = dist.get_world_size()
        for group, own in zip(self.param_groups, self.inner.param_groups):
            own.update({k: v for k, v in group.items() if k != "params"})
            for p in group["params"]:
                if p.requires_grad:
                    dist.all_reduce(p.grad)
                    p.grad /= w
            own["params"][0].copy_(self.mine(group, lambda p: p.detach()))
            own["params"][0].grad = self.mine(group, lambda p: p.grad)
        self.inner.step()
        for group, own in zip(self.param_groups, self.inner.param_groups):
            piece = own["params"][0].detach()
            parts = [torch.empty_like(piece) for _ in range(w)]
            dist.all_gather(parts, piece)
            flat, at = torch.cat(parts), 0
            for p in group["params"]:
                if p.requires_grad:
                    p.copy_(flat[at : at + p.numel()].view_as(p))
                if any(p is one for one in self.trained):
                    at += p.numel()
        return loss
"""

ANSWERS = [
    Answer(
        "13.2",
        "gives back the plain optimizer",
        "no-mean",
        """\
def ShardedOptimizer(params, optimizer_class, **settings):
    return optimizer_class(params, **settings)
""",
    ),
    altered(
        "13.2",
        "deals parameters out in turn",
        "whole-state",
        ("self.loads.index(min(self.loads))", "len(self.owner) % dist.get_world_size()"),
    ),
    altered(
        "13.2",
        "is always SGD",
        "hard-wired",
        (_INNER, "self.inner = torch.optim.SGD([inner_group], lr=0.1, momentum=0.9)"),
    ),
    altered(
        "13.2", "forgets the settings", "settings", (_INNER, "self.inner = self.cls([inner_group])")
    ),
    altered(
        "13.2",
        "throws groups together",
        "groups",
        ('{**group, "params": mine}', '{"params": mine}'),
    ),
    altered("13.2", "leaves the inner learning rate", "rate", (_SETTINGS, "")),
    Answer(
        "13.2",
        "keeps flat copies of its own from the beginning",
        "old-weights",
        IMPORTS + changed(_FLAT, (_COPIED, "")),
    ),
    altered(
        "13.2",
        "makes the inner optimizer in each step",
        "state",
        (
            "        self.inner.step()\n",
            "        self.inner.state.clear()\n        self.inner.step()\n",
        ),
    ),
    altered("13.2", "sends nothing afterwards", "not-gathered", (_SEND, "")),
    altered(
        "13.2",
        "sends what has changed",
        "not-equal",
        (
            "        self.inner.step()\n",
            "        before = {p: p.data.clone() for p in self.owner}\n        self.inner.step()\n",
        ),
        (
            _SEND,
            """\
        for p, owner in self.owner.items():
            moved = p.data - before[p]
            dist.broadcast(moved, owner)
            if owner != dist.get_rank():
                p.data += moved
""",
        ),
    ),
    altered(
        "13.2",
        "moves what is frozen",
        "values",
        (
            "            if p.requires_grad:\n",
            "            if p.grad is None: p.grad = torch.ones_like(p)\n            if True:\n",
        ),
    ),
    altered(
        "13.2",
        "keeps the gradients",
        "interface",
        ("            p.grad = None\n", ("            pass\n")),
    ),
    altered(
        "13.2",
        "calls the closure twice",
        "closure",
        ("            loss = closure()\n", "            closure()\n            loss = closure()\n"),
    ),
    altered(
        "13.2",
        "runs the closure without gradients",
        "raised",
        ("    def step(", "    @torch.no_grad()\n    def step("),
    ),
    altered(
        "13.2",
        "sends only what it owns",
        "deadlock",
        (
            _SEND,
            """\
        for p, owner in self.owner.items():
            if owner == dist.get_rank():
                dist.broadcast(p.data, owner)
            elif owner < dist.get_rank():
                dist.broadcast(p.data, owner)
""",
        ),
    ),
    Answer("13.2", "cuts one flat vector a group", None, IMPORTS + _FLAT),
    Answer(
        "13.2",
        "uses the package, owners",
        None,
        """\
from ddp_lessons.sharded_optimizer import OwnerOptimizer as ShardedOptimizer
""",
    ),
    Answer(
        "13.2",
        "uses the package, gradients sent in backward",
        None,
        """\
from ddp_lessons.sharded_optimizer import Zero2Optimizer as ShardedOptimizer
""",
    ),
    altered(
        "13.2",
        "reduces to the owner",
        None,
        (
            _REDUCE,
            """\
                dist.reduce(p.grad, self.owner[p])
                p.grad /= dist.get_world_size()
""",
        ),
    ),
    Answer(
        "13.2",
        "cuts every parameter, rounded up",
        None,
        """\
import torch
import torch.distributed as dist


class ShardedOptimizer:

    def __init__(self, params, optimizer_class, **settings):
        self.optimizer_class = optimizer_class
        self.settings = settings
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.piece = {}
        self.inner = None
        self.param_groups = []
        params = list(params)
        if not params or not isinstance(params[0], dict):
            params = [{"params": params}]
        for group in params:
            self.add_param_group(group)

    def bounds(self, param, rank):
        size = -(-param.numel() // self.world)
        return min(rank * size, param.numel()), min((rank + 1) * size, param.numel())

    def add_param_group(self, group):
        group = dict(group)
        params = group.pop("params")
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        mine = []
        for param in params:
            start, end = self.bounds(param, self.rank)
            if start < end:
                self.piece[param] = torch.nn.Parameter(param.data.view(-1)[start:end])
                mine.append(self.piece[param])
        inner_group = {**group, "params": mine}
        if self.inner is None:
            self.inner = self.optimizer_class([inner_group], **self.settings)
        else:
            self.inner.add_param_group(inner_group)
        known = self.inner.param_groups[-1]
        known = {key: value for key, value in known.items() if key != "params"}
        self.param_groups.append({"params": params, **known})

    @torch.no_grad()
    def step(self, closure=None):
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for group, inner in zip(self.param_groups, self.inner.param_groups):
            inner.update({key: value for key, value in group.items() if key != "params"})
        params = [param for group in self.param_groups for param in group["params"]]
        for param in params:
            piece = self.piece.get(param)
            if param.grad is None:
                if piece is not None:
                    piece.grad = None
                continue
            grad = param.grad.clone(memory_format=torch.contiguous_format).view(-1)
            dist.all_reduce(grad)
            if piece is not None:
                start, end = self.bounds(param, self.rank)
                piece.data = param.data.view(-1)[start:end]
                piece.grad = grad[start:end] / self.world
        self.inner.step()
        for param in params:
            if param.grad is None:
                continue
            for rank in range(self.world):
                start, end = self.bounds(param, rank)
                if start < end:
                    dist.broadcast(param.data.view(-1)[start:end], src=rank)
        return result

    def zero_grad(self):
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None
""",
    ),
]
