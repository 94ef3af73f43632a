"""
Answers to task 11.4.
"""

from bank import Answer

from wrong_answers.speed.sources import altered

SPEEDUP = "(samples / median(many)) / (before_samples / median(one))"
STEPS = "[max(times) for times in zip(*(own for own, _ in everyone))]"

ANSWERS = [
    altered("11.4", "keeps the warm-up of all ranks", "warm-up", ("steps[num_warm_up:]", "steps")),
    altered(
        "11.4", "takes means", "means", ("median(many)", "mean(many)"), ("median(one)", "mean(one)")
    ),
    altered(
        "11.4", "takes the best", "best", ("median(many)", "min(many)"), ("median(one)", "min(one)")
    ),
    altered("11.4", "compares seconds", "seconds", (SPEEDUP, "median(one) / median(many)")),
    altered(
        "11.4",
        "counts the samples of rank 0",
        "own-samples",
        ("sum(num for _, num in everyone)", "world_size * everyone[0][1]"),
    ),
    altered("11.4", "takes its own times", "own-times", (STEPS, "own_s")),
    altered("11.4", "swaps the spread", "spread", ("min(many), max(many)", "max(many), min(many)")),
    altered("11.4", "divides the wrong way", "inverse", (SPEEDUP, f"1 / ({SPEEDUP})")),
    altered(
        "11.4",
        "returns percents",
        "percent",
        ("speedup / world_size", "100 * speedup / world_size"),
    ),
    altered(
        "11.4",
        "divides by ranks less one",
        "efficiency",
        ("speedup / world_size", "speedup / max(1, world_size - 1)"),
    ),
    altered("11.4", "counts the ranks twice", "values", (SPEEDUP, f"world_size * 1.5 * {SPEEDUP}")),
    altered(
        "11.4",
        "returns two numbers",
        "no-parts",
        ('        "fastest_s": fastest,\n        "slowest_s": slowest,\n', ""),
    ),
    Answer(
        "11.4",
        "asks nobody",
        "alone",
        """\
from statistics import median

def report_speedup(before_s, before_samples, own_s, own_samples, num_warm_up):
    one, many = before_s[num_warm_up:], own_s[num_warm_up:]
    speedup = own_samples / median(many) / (before_samples / median(one))
    return {
        "speedup": speedup, "efficiency": speedup, "fastest_s": min(many), "slowest_s": max(many),
    }
""",
    ),
    altered(
        "11.4",
        "gathers three times",
        "cost",
        ("    steps =", "    dist.all_reduce(torch.zeros(1))\n    steps ="),
    ),
    altered(
        "11.4",
        "divides by the other ranks",
        "raised",
        ("speedup / world_size", "speedup / world_size + 0 / (world_size - 1)"),
    ),
    altered(
        "11.4",
        "sorts in place",
        "input-changed",
        ("    world_size =", "    own_s.sort()\n    world_size ="),
    ),
    altered(
        "11.4",
        "makes a group at each call",
        "store",
        (
            "(everyone, (own_s, own_samples))",
            "(everyone, (own_s, own_samples), group=dist.new_group())",
        ),
    ),
    altered(
        "11.4",
        "takes the lower one of the two in the middle",
        "middle",
        ("import mean, median", "import mean, median_low as median"),
    ),
    altered("11.4", "gathers objects", None),
    Answer(
        "11.4",
        "sends one tensor, and reads the samples off its sum",
        None,
        """\
import torch
import torch.distributed as dist

def report_speedup(before_s, before_samples, own_s, own_samples, num_warm_up):
    own = torch.tensor([*own_s[num_warm_up:], own_samples], dtype=torch.float64)
    table = torch.zeros(dist.get_world_size(), len(own), dtype=torch.float64)
    table[dist.get_rank()] = own
    dist.all_reduce(table)
    steps, total = table[:, :-1].amax(0), table[:, -1].sum()
    before = torch.tensor(before_s[num_warm_up:], dtype=torch.float64)
    gain = total / steps.quantile(0.5) * before.quantile(0.5) / before_samples
    return {
        "speedup": gain,
        "efficiency": gain / len(table),
        "fastest_s": steps.min(),
        "slowest_s": steps.max(),
        "sentence": f"{gain:.1f} times",
    }
""",
    ),
]
