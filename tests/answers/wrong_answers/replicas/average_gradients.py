"""
Answers to task 05.2.
"""

from bank import Answer, changed

from wrong_answers.replicas.sources import AVERAGE, altered

REDUCE = "        dist.all_reduce(parameter.grad)\n"

TOTAL = "torch.tensor(num_samples, device=rank_device())"

WEIGH = "        parameter.grad *= num_samples / total.item()\n"


def _counted(what, tensor, mistake="sent-dtype"):
    return altered("05.2", what, mistake, (TOTAL, tensor))


def _sent_as(dtype):
    return altered(
        "05.2",
        f"sends gradients as {dtype}",
        "sent-dtype",
        (
            REDUCE,
            f"        sent = parameter.grad.to(torch.{dtype})\n        dist.all_reduce(sent)\n"
            "        parameter.grad.copy_(sent)\n",
        ),
    )


ANSWERS = [
    Answer(
        "05.2",
        "gives every rank the same weight",
        "mean-of-means",
        changed(AVERAGE, ("num_samples / total.item()", "1 / dist.get_world_size()")),
    ),
    Answer(
        "05.2",
        "weighs by samples and never divides",
        "shares",
        changed(AVERAGE, ("num_samples / total.item()", "num_samples")),
    ),
    Answer(
        "05.2",
        "divides by the samples of ranks that have a gradient",
        "only-users",
        """\
import torch
import torch.distributed as dist

def average_gradients(model, num_samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    counts = torch.tensor([num_samples * (p.grad is not None) for p in trained]).to(torch.int32)
    counts = counts.to(trained[0].device)
    dist.all_reduce(counts)
    for parameter, count in zip(trained, counts.tolist()):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= num_samples / max(count, 1)
        dist.all_reduce(parameter.grad)
""",
    ),
    Answer(
        "05.2",
        "averages a copy",
        "own",
        changed(
            AVERAGE, ("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad.clone())")
        ),
    ),
    Answer(
        "05.2",
        "reduces to rank 0",
        "one-rank",
        changed(AVERAGE, ("dist.all_reduce(parameter.grad)", "dist.reduce(parameter.grad, dst=0)")),
    ),
    Answer(
        "05.2",
        "gives frozen parameters a gradient",
        "frozen",
        changed(AVERAGE, ("        if not parameter.requires_grad:\n            continue\n", "")),
    ),
    Answer(
        "05.2",
        "sends only where there is a gradient",
        "deadlock",
        changed(
            AVERAGE,
            ("if not parameter.requires_grad:", "if parameter.grad is None:"),
        ),
    ),
    Answer(
        "05.2",
        "takes it that there is a gradient",
        "raised",
        changed(
            AVERAGE,
            ("if parameter.grad is None or num_samples == 0:", "if num_samples == 0:"),
        ),
    ),
    Answer(
        "05.2",
        "counts the samples again for each parameter",
        "cost",
        changed(
            AVERAGE,
            ("    total = torch", "    def count():\n        total = torch"),
            (
                "    dist.all_reduce(total)\n",
                "        dist.all_reduce(total)\n        return total\n",
            ),
            ("total.item()", "count().item()"),
        ),
    ),
    Answer(
        "05.2",
        "starts the sum with the gradient of its own",
        "apart",
        """\
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device

def average_gradients(model, num_samples):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor(float(num_samples), dtype=torch.float64, device=rank_device())
    dist.all_reduce(total)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        has_none = parameter.grad is None or num_samples == 0
        own = torch.zeros_like(parameter) if has_none else parameter.grad
        own = own * (num_samples / total.item())
        parts = [torch.empty_like(own) for _ in range(world_size)]
        dist.all_gather(parts, own)
        parameter.grad = sum(parts[(rank + step) % world_size] for step in range(world_size))
""",
    ),
    Answer(
        "05.2",
        "unusual: sends gradients times samples, and the number of samples with them",
        None,
        """\
import torch
import torch.distributed as dist

def average_gradients(model, num_samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    has_none = num_samples == 0
    parts = [torch.zeros_like(p) if has_none or p.grad is None else p.grad for p in trained]
    count = torch.ones(1, dtype=parts[0].dtype, device=parts[0].device)
    flat = num_samples * torch.cat([*(part.flatten() for part in parts), count])
    dist.all_reduce(flat)
    flat /= flat[-1].clone()
    for parameter, part in zip(trained, flat[:-1].split([p.numel() for p in trained])):
        parameter.grad = part.view_as(parameter)
""",
    ),
    Answer(
        "05.2",
        "unusual: gathers, and every rank adds up in one order",
        None,
        """\
import torch
import torch.distributed as dist

def average_gradients(model, num_samples):
    world_size = dist.get_world_size()
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None or num_samples == 0:
            parameter.grad = torch.zeros_like(parameter)
    count = torch.tensor([num_samples], device=next(model.parameters()).device)
    total = [torch.empty_like(count) for _ in range(world_size)]
    dist.all_gather(total, count)
    shares = [number.item() / sum(total).item() for number in total]
    for parameter in model.parameters():
        if parameter.requires_grad:
            parts = [torch.empty_like(parameter.grad) for _ in range(world_size)]
            dist.all_gather(parts, parameter.grad)
            parameter.grad.copy_(sum(share * part for share, part in zip(shares, parts)))
""",
    ),
    Answer(
        "05.2",
        "makes every nan a zero",
        "hidden",
        """\
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device

def average_gradients(model, num_samples):
    total = torch.tensor(num_samples, dtype=torch.int64, device=rank_device())
    dist.all_reduce(total)
    share = num_samples / max(1, total.item())
    for p in model.parameters():
        if p.requires_grad:
            own = torch.zeros_like(p) if p.grad is None else p.grad
            part = (torch.nan_to_num(own) * share).contiguous()
            dist.all_reduce(part)
            p.grad = part
""",
    ),
    _counted("unusual: counts samples in float32", "torch.tensor(float(num_samples))", None),
    _sent_as("float32"),
    altered(
        "05.2",
        "sends zeros that do not lie in memory as the parameter does",
        "layout",
        (
            "torch.zeros_like(parameter)",
            "torch.zeros(parameter.shape, dtype=parameter.dtype, device=rank_device())",
        ),
    ),
    altered(
        "05.2",
        "weighs what is not a number with 0",
        "no-samples",
        (" or num_samples == 0", ""),
    ),
    altered(
        "05.2", "rounds shares down", "gradient", ("num_samples / total", "num_samples // total")
    ),
    altered(
        "05.2",
        "unusual: multiplies by the samples of a rank, and divides by all after the sum",
        None,
        (WEIGH + REDUCE, "        parameter.grad *= num_samples\n" + REDUCE + WEIGH),
        ("num_samples / total.item()", "1 / total.item()"),
    ),
    altered(
        "05.2",
        "unusual: divides by all samples before it weighs",
        None,
        (
            WEIGH,
            "        parameter.grad /= total.item()\n        parameter.grad *= num_samples\n",
        ),
    ),
    altered(
        "05.2",
        "unusual: makes shares in the dtype of the gradient",
        None,
        ("num_samples / total.item()", "num_samples / total.to(parameter.dtype)"),
    ),
    altered(
        "05.2",
        "unusual: weighs in float64",
        None,
        (
            WEIGH,
            "        share = parameter.grad.double() * num_samples / total\n"
            "        parameter.grad = share.to(parameter.dtype)\n",
        ),
    ),
    Answer(
        "05.2",
        "unusual: gathers the numbers of samples, and sends all shares in one message",
        None,
        """\
import torch
import torch.distributed as dist

def average_gradients(model, num_samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    numbers = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=trained[0].device)
    own = torch.full((1,), num_samples, device=trained[0].device)
    dist.all_gather_into_tensor(numbers, own)
    share = num_samples / numbers.sum().item()
    parts = [p.grad if num_samples and p.grad is not None else 0 * p.detach() for p in trained]
    flat = share * torch.cat([part.flatten() for part in parts])
    dist.all_reduce(flat)
    for parameter, part in zip(trained, flat.split([p.numel() for p in trained])):
        parameter.grad = part.view_as(parameter).clone()
""",
    ),
    altered(
        "05.2",
        "unusual: gathers the numbers of samples as objects",
        None,
        (
            "    total = " + TOTAL + "\n    dist.all_reduce(total)\n",
            "    numbers = [None] * dist.get_world_size()\n"
            "    dist.all_gather_object(numbers, num_samples)\n",
        ),
        ("total.item()", "sum(numbers)"),
    ),
    altered(
        "05.2",
        "unusual: counts samples in a tensor with a number for each rank",
        None,
        (
            TOTAL,
            "torch.zeros(dist.get_world_size(), dtype=torch.int64, device=rank_device())\n"
            "    total[dist.get_rank()] = num_samples",
        ),
        ("total.item()", "total.sum().item()"),
    ),
    altered(
        "05.2",
        "sums reshaped gradients, which may be copies",
        "copied",
        (
            "        parameter.grad *= num_samples / total.item()\n"
            "        dist.all_reduce(parameter.grad)\n",
            "        flat = parameter.grad.reshape(-1)\n"
            "        flat *= num_samples / total.item()\n        dist.all_reduce(flat)\n",
        ),
    ),
    Answer(
        "05.2",
        "unusual: gathers all, and adds up in float64",
        None,
        """\
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device

def average_gradients(model, num_samples):
    world_size = dist.get_world_size()
    counts = [torch.zeros(1, dtype=torch.int64, device=rank_device()) for _ in range(world_size)]
    dist.all_gather(counts, torch.tensor([num_samples], device=rank_device()))
    counts = [count.item() for count in counts]
    for parameter in filter(lambda p: p.requires_grad, model.parameters()):
        if (own := parameter.grad) is None:
            own = torch.zeros_like(parameter)
        own = own.contiguous()
        parts = [torch.empty_like(own) for _ in counts]
        dist.all_gather(parts, own)
        whole = torch.zeros_like(own, dtype=torch.float64)
        for part, count in zip(parts, counts, strict=True):
            if count:
                whole += part.double() * count / sum(counts)
        parameter.grad = whole.to(parameter.dtype)
""",
    ),
]
