"""
Answers to task 14.2.
"""

from bank import Answer

from wrong_answers.asynchronous.sources import IMPORTS, altered

MEAN = "            mean = flat / dist.get_world_size()\n"
REDUCE = "            dist.all_reduce(flat)\n"
DUE = "number % every == 0 or number == len(batches)"

ANSWERS = [
    altered("14.2", "never meets", "no-meeting", (DUE, "False")),
    altered("14.2", "forgets what is left over", "left-over", (DUE, "number % every == 0")),
    altered("14.2", "meets after every step", "too-often", (DUE, "True")),
    altered("14.2", "adds weights up", "sum", (MEAN, "            mean = flat\n")),
    altered(
        "14.2",
        "sends rank 0's weights",
        "wrong-mean",
        (REDUCE + MEAN, "            dist.broadcast(flat, 0)\n            mean = flat\n"),
    ),
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
        "drops what is left over",
        "num-steps",
        (
            "enumerate(batches, start=1)",
            "enumerate(batches[: max(1, len(batches) // every * every)], start=1)",
        ),
    ),
    altered("14.2", "empties no gradient", "not-zeroed", ("        optimizer.zero_grad()\n", "")),
    altered(
        "14.2",
        "trains in eval mode, and puts all modes back",
        "left-changed",
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
    altered(
        "14.2",
        "sends frozen weights, too",
        "cost",
        (
            "ps = [p for p in model.parameters() if p.requires_grad]",
            "ps = list(model.parameters())",
        ),
    ),
    altered(
        "14.2",
        "scales the batches",
        "gradient",
        (
            "        loss = mse_loss(model(x), y)\n",
            "        loss = mse_loss(model(x), y, reduction='sum')\n",
        ),
    ),
    altered(
        "14.2",
        "changes weights that autograd watches",
        "raised",
        ("p.data.copy_", "p.copy_"),
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
]
