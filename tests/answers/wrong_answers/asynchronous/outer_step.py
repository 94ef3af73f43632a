"""
Answers to task 14.3.
"""

from bank import Answer

from wrong_answers.asynchronous.sources import IMPORTS, altered

REDUCE = "    dist.all_reduce(flat)\n"
MEAN = "    mean = flat / dist.get_world_size()\n"
WRITE = "    for whole, p in zip(common, ps):\n        p.data.copy_(whole.data)\n"
FIRST = '    common = outer.param_groups[0]["params"]\n'

ANSWERS = [
    altered(
        "14.3",
        "sums up on rank 0 alone",
        "not-everywhere",
        ("dist.all_reduce(flat)", "dist.reduce(flat, 0)"),
    ),
    altered(
        "14.3",
        "makes Nesterov's step by hand",
        "by-hand",
        (
            "    outer.step()\n",
            """\
    rate, momentum = outer.param_groups[0]["lr"], outer.param_groups[0]["momentum"]
    for whole in common:
        noted = outer.state[whole]
        moved = noted.get("momentum_buffer", torch.zeros_like(whole)) * momentum + whole.grad
        noted["momentum_buffer"] = moved
        whole.data -= rate * (whole.grad + momentum * moved)
""",
        ),
    ),
    altered(
        "14.3",
        "freezes the outer parameters",
        "left-changed",
        (
            "    outer.step()\n",
            "    outer.step()\n    for whole in common:\n        whole.requires_grad_(False)\n",
        ),
    ),
    altered("14.3", "takes the difference the other way", "sign", ("(whole - p)", "(p - whole)")),
    altered("14.3", "adds up", "sum", (MEAN, "    mean = flat\n")),
    altered(
        "14.3",
        "sends differences in bfloat16",
        "rounded",
        (
            REDUCE,
            "    half = flat.bfloat16()\n"
            "    dist.all_reduce(half)\n"
            "    flat = half.to(flat.dtype)\n",
        ),
    ),
    altered("14.3", "asks nobody", "own", (REDUCE + MEAN, "    mean = flat\n")),
    altered(
        "14.3",
        "averages the model's gradients",
        "inner-gradient",
        ("(whole - p).detach()", "p.grad"),
    ),
    altered(
        "14.3",
        "makes an optimizer each time",
        "momentum-lost",
        (
            "    outer.step()\n",
            "    group = outer.param_groups[0]\n"
            "    torch.optim.SGD(\n"
            "        common, lr=group['lr'], momentum=group['momentum'], nesterov=True\n"
            "    ).step()\n",
        ),
    ),
    altered(
        "14.3",
        "takes mean weights for a gradient",
        "weights-for-gradient",
        ("(whole - p).detach()", "p.detach()"),
    ),
    altered(
        "14.3",
        "adds to the last gradient",
        "added-up",
        (
            "        whole.grad = mean[start",
            "        old = 0 if whole.grad is None else whole.grad\n"
            "        whole.grad = old + mean[start",
        ),
        (".view_as(whole).clone()", ".view_as(whole)"),
    ),
    altered("14.3", "forgets the step", "no-step", ("    outer.step()\n", "")),
    Answer(
        "14.3",
        "averages weights",
        "plain-mean",
        IMPORTS
        + """\
def outer_step(model, outer):
    common = outer.param_groups[0]["params"]
    ps = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([p.detach().flatten() for p in ps])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for whole, p in zip(common, ps):
        whole.data.copy_(flat[start : start + p.numel()].view_as(p))
        p.data.copy_(whole.data)
        start += p.numel()
""",
    ),
    Answer(
        "14.3",
        "makes a heavy-ball step by hand",
        "heavy-ball",
        IMPORTS
        + """\
@torch.no_grad()
def outer_step(model, outer):
    group = outer.param_groups[0]
    ps = [p for p in model.parameters() if p.requires_grad]
    apart = [(whole - p).flatten() for whole, p in zip(group["params"], ps)]
    flat = torch.cat(apart) / dist.get_world_size()
    dist.all_reduce(flat)
    for whole, p, part in zip(group["params"], ps, flat.split([len(one) for one in apart])):
        state = outer.state[whole]
        kept = state.get("momentum_buffer", torch.zeros_like(whole))
        state["momentum_buffer"] = group["momentum"] * kept + part.view_as(whole)
        whole -= group["lr"] * state["momentum_buffer"]
        p.copy_(whole)
""",
    ),
    altered(
        "14.3",
        "forgets biases",
        "some-weights",
        ("for whole in common:", "for whole in common[:1]:"),
    ),
    altered("14.3", "keeps its own weights", "not-written", (WRITE, "")),
    altered(
        "14.3",
        "shares memory",
        "shared-memory",
        ("p.data.copy_(whole.data)", "p.data = whole.data"),
    ),
    altered(
        "14.3",
        "adds up in an order of its own",
        "not-alike",
        (
            REDUCE + MEAN,
            "    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(everyone, flat)\n"
            "    rank, mean = dist.get_rank(), flat / len(everyone)\n"
            "    for one in everyone[:rank] + everyone[rank + 1 :]:\n"
            "        mean = mean + one / len(everyone)\n",
        ),
    ),
    altered(
        "14.3",
        "sends parameter by parameter",
        "cost",
        (
            "    flat = torch.cat(apart)\n" + REDUCE + MEAN,
            "    for one in apart:\n        dist.all_reduce(one)\n"
            "    mean = torch.cat(apart) / dist.get_world_size()\n",
        ),
    ),
    altered(
        "14.3",
        "sends weights and outer parameters",
        "bytes",
        (
            REDUCE,
            "    both = torch.cat([flat, flat])\n    dist.all_reduce(both)\n"
            "    flat = both[: len(flat)]\n",
        ),
    ),
    altered(
        "14.3",
        "takes frozen parameters, too",
        "raised",
        (
            "ps = [p for p in model.parameters() if p.requires_grad]",
            "ps = list(model.parameters())",
        ),
    ),
    altered(
        "14.3",
        "lets rank 0 average",
        "deadlock",
        (REDUCE, "    if dist.get_rank() == 0:\n        dist.all_reduce(flat)\n"),
    ),
    altered(
        "14.3",
        "steps twice",
        "values",
        ("    outer.step()\n", "    outer.step()\n    outer.step()\n"),
    ),
    altered(
        "14.3",
        "averages weights, then takes the difference",
        None,
        ("(whole - p).detach().flatten() for whole, p in", "p.detach().flatten() for _, p in"),
        (
            "    start = 0\n",
            "    mean = torch.cat([w.detach().flatten() for w in common]) - mean\n    start = 0\n",
        ),
    ),
    altered(
        "14.3",
        "works with two lists and torch's helpers",
        None,
        (
            FIRST,
            FIRST + "    outer.zero_grad()\n",
        ),
        (
            WRITE,
            "    whole = torch.nn.utils.parameters_to_vector(common).detach().clone()\n"
            "    torch.nn.utils.vector_to_parameters(whole, ps)\n",
        ),
    ),
]
