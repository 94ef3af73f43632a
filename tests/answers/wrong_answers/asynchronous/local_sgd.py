"""
Answers to task 14.2.
"""

from bank import Answer

from wrong_answers.asynchronous.sources import IMPORTS, altered

MEAN = "            mean = flat / dist.get_world_size()\n"
REDUCE = "            dist.all_reduce(flat)\n"
DUE = "number % every == 0 or number == len(batches)"
STEP = "        optimizer.step()\n"

ANSWERS = [
    altered(
        "14.2",
        "looks into the optimizer's first group",
        "some-weights",
        (
            "[p for p in model.parameters() if p.requires_grad]",
            'optimizer.param_groups[0]["params"]',
        ),
    ),
    altered(
        "14.2",
        "weighs ranks by their samples",
        "wrong-mean",
        (
            "            dist.all_reduce(flat)\n",
            "            flat *= len(x)\n"
            "            dist.all_reduce(flat)\n"
            "            flat /= len(x)\n",
        ),
    ),
    altered(
        "14.2",
        "meets once where there are no batches",
        "cost",
        ("    for number,", "    if not batches:\n        dist.barrier()\n    for number,"),
    ),
    altered("14.2", "never meets", "no-meeting", (DUE, "False")),
    altered("14.2", "forgets what is left over", "left-over", (DUE, "number % every == 0")),
    altered("14.2", "meets at the end alone", "no-meeting", (DUE, "number == len(batches)")),
    altered("14.2", "meets after every step", "too-often", (DUE, "True")),
    altered("14.2", "counts from 0", "too-often", ("number % every", "(number - 1) % every")),
    altered(
        "14.2",
        "counts on from call to call",
        "too-often",
        (
            "    for number, (x, y) in enumerate(batches, start=1):\n",
            "    first = vars(model).setdefault('num_made', 0)\n"
            "    model.num_made += len(batches)\n"
            "    for number, (x, y) in enumerate(batches, start=1):\n",
        ),
        ("number % every == 0", "(first + number) % every == 0"),
    ),
    altered(
        "14.2",
        "averages gradients",
        "every-step",
        (
            STEP,
            "        for p in ps:\n"
            "            dist.all_reduce(p.grad)\n"
            "            p.grad /= dist.get_world_size()\n" + STEP,
        ),
    ),
    altered("14.2", "adds weights up", "sum", (MEAN, "            mean = flat\n")),
    altered(
        "14.2",
        "sends rank 0's weights",
        "one-rank",
        (REDUCE + MEAN, "            dist.broadcast(flat, 0)\n            mean = flat\n"),
    ),
    altered(
        "14.2",
        "reduces to rank 0",
        "not-everywhere",
        (
            REDUCE + MEAN,
            "            own = flat.clone()\n            dist.reduce(flat, 0)\n"
            "            mean = flat / dist.get_world_size() if dist.get_rank() == 0 else own\n",
        ),
    ),
    altered(
        "14.2",
        "averages weights without biases",
        "some-weights",
        (
            "            flat = torch",
            "            qs, ps = ps, [p for p in ps if p.dim() > 1]\n            flat = torch",
        ),
        (
            "                start += p.numel()\n",
            "                start += p.numel()\n            ps = qs\n",
        ),
    ),
    altered(
        "14.2",
        "sends weights in bfloat16",
        "rounded",
        (
            REDUCE,
            "            half = flat.bfloat16()\n"
            "            dist.all_reduce(half)\n"
            "            flat = half.to(flat.dtype)\n",
        ),
    ),
    altered("14.2", "divides by 4", "wrong-mean", ("flat / dist.get_world_size()", "flat / 4")),
    altered(
        "14.2",
        "adds up in an order of its own",
        "not-alike",
        (
            REDUCE + MEAN,
            "            rows = [torch.empty_like(flat) for _ in range(dist.get_world_size())]\n"
            "            dist.all_gather(rows, flat)\n"
            "            rank, total = dist.get_rank(), flat / len(rows)\n"
            "            for one in rows[:rank] + rows[rank + 1 :]:\n"
            "                total = total + one / len(rows)\n"
            "            mean = total\n",
        ),
    ),
    altered(
        "14.2",
        "shrinks weights at each step",
        "moved",
        (STEP, STEP + "        for p in ps:\n            p.data *= 0.99\n"),
    ),
    altered(
        "14.2",
        "drops what is left over",
        "num-steps",
        (
            "enumerate(batches, start=1)",
            "enumerate(batches[: max(1, len(batches) // every * every)], start=1)",
        ),
    ),
    altered(
        "14.2",
        "steps by hand",
        "num-steps",
        (STEP, "        for p in ps: p.data -= 0.05 * p.grad\n"),
    ),
    altered("14.2", "forgets the backward", "no-gradient", ("        loss.backward()\n", "")),
    altered("14.2", "empties no gradient", "not-zeroed", ("        optimizer.zero_grad()\n", "")),
    altered(
        "14.2",
        "forgets the momentum at each meeting",
        "optimizer",
        (MEAN, MEAN + "            optimizer.state.clear()\n"),
    ),
    altered(
        "14.2",
        "averages the momentum, too",
        "optimizer",
        (
            MEAN,
            MEAN + "            for p in ps:\n"
            "                dist.all_reduce(optimizer.state[p]['momentum_buffer'])\n"
            "                optimizer.state[p]['momentum_buffer'] /= dist.get_world_size()\n",
        ),
    ),
    altered(
        "14.2",
        "lowers the rate",
        "left-changed",
        (MEAN, MEAN + "            optimizer.param_groups[0]['lr'] *= 0.9\n"),
    ),
    altered(
        "14.2",
        "puts all of the model into train mode",
        "left-changed",
        ("    for number,", "    model.train()\n    for number,"),
    ),
    altered(
        "14.2",
        "leaves the model in eval mode",
        "left-changed",
        (STEP, STEP + "        model.eval()\n"),
    ),
    altered(
        "14.2",
        "trains in eval mode, and puts all modes back",
        "mode",
        (
            "        loss = mse_loss(model(x), y)\n",
            "        modes = [(part, part.training) for part in model.modules()]\n"
            "        model.eval()\n"
            "        loss = mse_loss(model(x), y)\n"
            "        for part, mode in modes:\n"
            "            part.training = mode\n",
        ),
    ),
    altered(
        "14.2",
        "averages in the order of a set of names",
        "own-order",
        (
            "ps = [p for p in model.parameters() if p.requires_grad]",
            "named = dict(model.named_parameters())\n"
            "    ps = [named[name] for name in set(named) if named[name].requires_grad]",
        ),
    ),
    Answer(
        "14.2",
        "sends each parameter by itself",
        "cost",
        IMPORTS
        + """\
def local_sgd(model, optimizer, batches, every):
    for number, (x, y) in enumerate(batches, start=1):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        if number % every == 0 or number == len(batches):
            with torch.no_grad():
                for p in model.parameters():
                    if p.requires_grad:
                        dist.all_reduce(p)
                        p /= dist.get_world_size()
""",
    ),
    altered(
        "14.2",
        "sends frozen weights, too",
        "bytes",
        (
            "ps = [p for p in model.parameters() if p.requires_grad]",
            "ps = list(model.parameters())",
        ),
    ),
    altered(
        "14.2",
        "scales the batches",
        "values",
        (
            "        loss = mse_loss(model(x), y)\n",
            "        loss = mse_loss(model(x), y, reduction='sum')\n",
        ),
    ),
    altered(
        "14.2",
        "changes its inputs",
        "values",
        ("        optimizer.zero_grad()\n", "        optimizer.zero_grad()\n        x = x * 2\n"),
    ),
    altered(
        "14.2",
        "changes weights that autograd watches",
        "raised",
        ("p.data.copy_", "p.copy_"),
    ),
    altered(
        "14.2",
        "meets when its rank likes",
        "deadlock",
        (DUE, "number == len(batches) or dist.get_rank() > 0 and number % every == 0"),
    ),
    Answer(
        "14.2",
        "wraps the model in DDP",
        "unwaited",
        IMPORTS
        + """\
from torch.nn.parallel import DistributedDataParallel


def local_sgd(model, optimizer, batches, every):
    wrapped = DistributedDataParallel(model)
    for number, (x, y) in enumerate(batches, start=1):
        wrapped.require_backward_grad_sync = number % every == 0 or number == len(batches)
        optimizer.zero_grad()
        mse_loss(wrapped(x), y).backward()
        optimizer.step()
""",
    ),
    altered(
        "14.2",
        "gathers",
        None,
        (
            REDUCE + MEAN,
            "            rows = [torch.empty_like(flat) for _ in range(dist.get_world_size())]\n"
            "            dist.all_gather(rows, flat)\n"
            "            mean = torch.stack(rows).mean(dim=0)\n",
        ),
    ),
    Answer(
        "14.2",
        "uses the package",
        None,
        """\
from ddp_lessons.asynchronous import LocalSGD
from torch.nn.functional import mse_loss


def local_sgd(model, optimizer, batches, every):
    way = LocalSGD(model, optimizer, every)
    model.zero_grad()
    for x, y in batches:
        mse_loss(model(x), y).backward()
        way.step()
    way.finish()
""",
    ),
    Answer(
        "14.2",
        "forgets gradients after the step only",
        "not-zeroed",
        """\
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


def local_sgd(model, optimizer, batches, every):
    trained = [param for group in optimizer.param_groups for param in group["params"]]

    def meet():
        with torch.no_grad():
            flat = torch.cat([param.reshape(-1) for param in trained])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for param, piece in zip(trained, flat.split([param.numel() for param in trained])):
                param.copy_(piece.view_as(param))

    steps = 0
    for inputs, targets in batches:
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % every == 0:
            meet()
    if steps % every:
        meet()
""",
    ),
]
