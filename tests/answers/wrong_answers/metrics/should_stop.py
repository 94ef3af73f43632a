"""
Answers to task 12.4.
"""

from bank import Answer

from wrong_answers.metrics.sources import IMPORTS, altered

REDUCE = "    dist.all_reduce(sums)\n"
LOSS = "    loss = (sums[0] / sums[1]).item()\n"
BETTER = 'loss < notes["best"] - notes["min_delta"]'
RETURN = '    return notes["bad_epochs"] >= notes["patience"] or sums[2].item() > 0\n'

ANSWERS = [
    altered(
        "12.4",
        "has a loss of 0 where nobody has samples",
        "nobody",
        (LOSS, LOSS.replace("sums[1]", "sums[1].clamp(min=1)")),
    ),
    altered(
        "12.4",
        "divides numbers of Python's",
        "raised",
        (LOSS, "    loss = sums[0].item() / sums[1].item()\n"),
    ),
    altered(
        "12.4",
        "does not talk",
        "alone",
        (REDUCE, ""),
        (LOSS, "    loss = total / max(num_samples, 1)\n"),
    ),
    altered(
        "12.4",
        "shares only whose time is up",
        "alone",
        (LOSS, "    loss = total / max(num_samples, 1)\n"),
    ),
    Answer(
        "12.4",
        "shares its own decision",
        "alone",
        IMPORTS
        + """\
def should_stop(notes, total, num_samples, time_is_up):
    loss = total / max(num_samples, 1)
    if loss < notes["best"] - notes["min_delta"]:
        notes["best"], notes["bad_epochs"] = loss, 0
    else:
        notes["bad_epochs"] += 1
    stops = notes["bad_epochs"] >= notes["patience"] or time_is_up
    decision = torch.tensor(float(stops))
    dist.all_reduce(decision, op=dist.ReduceOp.MAX)
    return bool(decision)
""",
    ),
    altered(
        "12.4",
        "takes the mean of means",
        "mean-of-means",
        ("[total, num_samples,", "[total / max(num_samples, 1), 1,"),
    ),
    altered("12.4", "goes by the sum", "not-a-mean", (LOSS, "    loss = sums[0].item()\n")),
    altered(
        "12.4",
        "divides by ranks",
        "not-a-mean",
        (LOSS, "    loss = sums[0].item() / dist.get_world_size()\n"),
    ),
    altered(
        "12.4",
        "goes by rank 0",
        "one-rank",
        (REDUCE, "    dist.broadcast(sums, 0)\n"),
    ),
    altered("12.4", "forgets min_delta", "min-delta", (' - notes["min_delta"]', "")),
    altered("12.4", "lets exactly min_delta do", "min-delta", ("loss < notes", "loss <= notes")),
    altered("12.4", "waits one epoch more", "patience", (">= notes", "> notes")),
    altered(
        "12.4",
        "never begins anew",
        "not-reset",
        ('        notes["bad_epochs"] = 0\n', ""),
    ),
    altered(
        "12.4",
        "takes nan for better",
        "nan",
        (f"if {BETTER}:", 'if not loss >= notes["best"] - notes["min_delta"]:'),
    ),
    altered(
        "12.4",
        "leaves nan out",
        "nan",
        ('    else:\n        notes["bad', '    elif loss == loss:\n        notes["bad'),
    ),
    altered(
        "12.4",
        "keeps the lowest of all",
        "best",
        (
            LOSS,
            LOSS + '    is_better = loss < notes["best"] - notes["min_delta"]\n'
            '    if loss < notes["best"]: notes["best"] = loss\n',
        ),
        (f"if {BETTER}", "if is_better"),
    ),
    altered(
        "12.4",
        "compares with the epoch before",
        "best",
        ('        notes["best"] = loss\n', ""),
        (RETURN, '    notes["best"] = loss\n' + RETURN),
    ),
    altered("12.4", "forgets the time", "time-ignored", (" or sums[2].item() > 0", "")),
    altered(
        "12.4",
        "stops alone when its time is up",
        "time-alone",
        (" or sums[2].item() > 0", " or time_is_up"),
    ),
    altered(
        "12.4",
        "waits until everybody's time is up",
        "time-ignored",
        ("sums[2].item() > 0", "sums[2].item() == dist.get_world_size()"),
    ),
    altered(
        "12.4",
        "returns a number",
        "not-bool",
        (RETURN, RETURN.replace("return ", "return 1 * (").rstrip() + ")\n"),
    ),
    altered(
        "12.4",
        "returns a tensor",
        "not-bool",
        (RETURN, '    return torch.tensor(notes["bad_epochs"] >= notes["patience"])\n'),
    ),
    altered("12.4", "returns nothing", "nothing", (RETURN, "")),
    altered(
        "12.4",
        "forgets bad epochs when time is up",
        "notes",
        (
            '    return notes["bad_epochs"]',
            '    if sums[2] > 0:\n        notes["bad_epochs"] = 0\n        return True\n'
            '    return notes["bad_epochs"]',
        ),
    ),
    altered(
        "12.4",
        "notes the best under another name",
        "notes",
        ('notes["best"] - notes', 'notes.get("low", 9e9) - notes'),
        ('notes["best"] = loss', 'notes["low"] = loss'),
    ),
    altered(
        "12.4",
        "reduces to rank 0",
        "not-everywhere",
        (REDUCE, "    dist.reduce(sums, 0)\n    if dist.get_rank(): sums += 7\n"),
    ),
    altered(
        "12.4",
        "divides by its own number",
        "raised",
        ("    own = [total,", "    mean = total / num_samples\n    own = [total,"),
    ),
    altered(
        "12.4",
        "leaves when its time is up",
        "deadlock",
        ("    own = [total,", "    if time_is_up: return True\n    own = [total,"),
    ),
    altered(
        "12.4",
        "leaves without samples",
        "deadlock",
        ("    own = [total,", "    if num_samples == 0: return False\n    own = [total,"),
    ),
    altered(
        "12.4",
        "makes three collectives",
        "cost",
        (REDUCE, "    for one in sums: dist.all_reduce(one)\n"),
    ),
    altered(
        "12.4",
        "has a place for each rank",
        "bytes",
        (
            REDUCE,
            "    table = torch.zeros(dist.get_world_size() + 1, 3, dtype=torch.float64)\n"
            "    table[dist.get_rank()] = sums\n    dist.all_reduce(table)\n"
            "    sums = table.sum(0)\n",
        ),
    ),
    altered(
        "12.4",
        "takes the loss for what is better",
        "values",
        ("loss < notes", "-loss < notes"),
    ),
    Answer(
        "12.4",
        "gathers, in float32",
        None,
        IMPORTS
        + """\
def should_stop(notes, total, num_samples, time_is_up):
    own = torch.tensor([time_is_up, num_samples, total], dtype=torch.float32)
    everyone = torch.empty(dist.get_world_size() * 3)
    dist.all_gather_into_tensor(everyone, own)
    wishes, samples, totals = everyone.double().view(-1, 3).sum(0).tolist()
    mean = totals / samples if samples else float("nan")
    is_better = notes["best"] - mean > notes["min_delta"]
    notes.update(
        best=mean if is_better else notes["best"],
        bad_epochs=0 if is_better else notes["bad_epochs"] + 1,
    )
    return bool(wishes) or not notes["bad_epochs"] < notes["patience"]
""",
    ),
    altered(
        "12.4",
        "keeps a tensor for the best",
        None,
        ('notes["best"] = loss', 'notes["best"] = torch.tensor(loss, dtype=torch.float64)'),
        (RETURN, RETURN.replace("return ", "return bool(").rstrip() + ")\n"),
    ),
    Answer(
        "12.4",
        "stops once",
        "once",
        """\
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device


def should_stop(notes, total, num_samples, time_is_up):
    packed = torch.tensor([float(total), float(num_samples), float(time_is_up)],
                          dtype=torch.float64, device=rank_device())
    dist.all_reduce(packed)
    total, count, late = packed.tolist()
    loss = total / count if count else float("nan")
    if notes["best"] - loss > notes["min_delta"]:
        notes["best"] = loss
        notes["bad_epochs"] = 0
    else:
        notes["bad_epochs"] += 1
    return notes["bad_epochs"] == notes["patience"] or late > 0
""",
    ),
    Answer(
        "12.4",
        "sends an infinite loss when its time is up",
        "time-as-loss",
        """\
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device


def should_stop(notes, total, num_samples, time_is_up):
    packed = torch.tensor([float("inf") if time_is_up else float(total), float(num_samples)],
                          dtype=torch.float64, device=rank_device())
    dist.all_reduce(packed)
    total, count = packed.tolist()
    late = 1 if total == float("inf") else 0
    loss = total / count if count else float("nan")
    if notes["best"] - loss > notes["min_delta"]:
        notes["best"] = loss
        notes["bad_epochs"] = 0
    else:
        notes["bad_epochs"] += 1
    return notes["bad_epochs"] >= notes["patience"] or late > 0
""",
    ),
    altered(
        "12.4",
        "begins its sum with its own part",
        "not-alike",
        (
            REDUCE,
            "    parts = [torch.empty_like(sums) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(parts, sums)\n"
            "    rest = [p for r, p in enumerate(parts) if r != dist.get_rank()]\n"
            "    sums = sum(rest, sums)\n",
        ),
    ),
    altered(
        "12.4",
        "leaves before it notes when time is up",
        "notes",
        ("    if loss < notes", "    if sums[2] > 0: return True\n    if loss < notes"),
    ),
]
