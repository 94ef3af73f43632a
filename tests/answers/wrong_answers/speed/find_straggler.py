"""
Answers to task 11.2.
"""

from bank import Answer

from wrong_answers.speed.sources import STRAGGLER, altered

NUMBER = "median(call - start for start, call, end in steps[1:])"
LIMIT = "longest if times[longest] > 1.25 * max(others) else None"

ANSWERS = [
    altered("11.2", "takes the mean", "outlier", ("= median(", "= mean(")),
    altered("11.2", "asks who calls last", "clock", (NUMBER, "steps[-1][1]"), (LIMIT, "longest")),
    altered(
        "11.2",
        "asks who is in the all-reduce longest",
        "victim",
        ("call - start for", "end - call for"),
        (LIMIT, "longest"),
    ),
    altered("11.2", "wants three times as long", "none-found", ("1.25", "3")),
    altered(
        "11.2",
        "compares with the median of all",
        "nobody",
        ("> 1.25 * max(others)", "> 1.25 * median(times)"),
    ),
    altered("11.2", "names one at the limit, too", "at-limit", ("> 1.25", ">= 1.25")),
    altered(
        "11.2",
        "takes the lower one of the two in the middle",
        "middle",
        (f"= {NUMBER}", f"= torch.tensor([*{NUMBER[6:]}]).median().item()"),
    ),
    altered(
        "11.2",
        "divides",
        None,
        ("times[longest] > 1.25 * max(others)", "times[longest] / max(others) > 1.25"),
    ),
    altered(
        "11.2", "reckons in whole microseconds", None, (f"= {NUMBER}", f"= round(1e6 * {NUMBER})")
    ),
    altered(
        "11.2",
        "compares with no others",
        "raised",
        ("    if len(times) == 1:\n        return None\n", ""),
    ),
    Answer(
        "11.2",
        "asks nobody",
        "alone",
        """\
from statistics import median

def find_straggler(steps):
    own = median(call - start for start, call, _ in steps[1:])
    return None if own < 0.018 else 0
""",
    ),
    altered(
        "11.2",
        "tells only the straggler",
        "not-agreed",
        (LIMIT, "longest if dist.get_rank() == longest else None"),
    ),
    altered(
        "11.2", "returns the rank and its time", "no-rank", (LIMIT, "(longest, times[longest])")
    ),
    altered(
        "11.2",
        "gathers objects",
        "cost",
        ("    dist.all_gather(everyone, own)\n", "    dist.all_gather_object(everyone, own)\n"),
    ),
    altered(
        "11.2",
        "drops the first step for good",
        "input-changed",
        ("    number =", "    steps.pop(0)\n    number ="),
        ("steps[1:]", "steps"),
    ),
    altered(
        "11.2",
        "makes a group at each call",
        "store",
        ("(everyone, own)", "(everyone, own, group=dist.new_group())"),
    ),
    Answer(
        "11.2",
        "reduces a table",
        None,
        """\
import torch
import torch.distributed as dist

def find_straggler(steps):
    seconds = sorted(call - start for start, call, _ in steps[1:])
    table = torch.zeros(dist.get_world_size())
    middle = seconds[(len(seconds) - 1) // 2 : len(seconds) // 2 + 1]
    table[dist.get_rank()] = sum(middle) / len(middle)
    dist.all_reduce(table, op=dist.ReduceOp.MAX)
    if len(table) < 2:
        return None
    (first, second), (rank, _) = table.topk(2)
    return rank if first / second > 1.25 else None
""",
    ),
    Answer(
        "11.2",
        "asks everybody whether it is them",
        None,
        STRAGGLER.replace("return longest if", "return float(longest) if"),
    ),
    Answer(
        "11.2",
        "uses the package",
        None,
        """\
from ddp_lessons.speed import agree_on_straggler

def find_straggler(steps):
    return agree_on_straggler([call - start for start, call, _ in steps])
""",
    ),
]
