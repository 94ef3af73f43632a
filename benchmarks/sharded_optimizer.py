"""
Measure a training step of each sharded optimizer against torch's ZeroRedundancyOptimizer under DDP.

    python benchmarks/sharded_optimizer.py                # 15 rounds, on 2 and on 4 ranks
    python benchmarks/sharded_optimizer.py --repeats 31 --json sharded.json

Model and samples are those of replicas.py, the inner optimizer is Adam. In each round every way
does one step, in an order that rotates, so that a slow moment slows all alike. The limit is on the
median of the ratios within rounds, to the faster of torch's two ways. "State" is the optimizer
state of the rank that keeps the most.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path
from statistics import median

import torch
from machine import describe_machine
from rank_processes import in_turns, run_ranks
from replicas import NUM_SAMPLES, NUM_WARM_UP, model, step
from rich.console import Console
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.process_group import rank_device
from ddp_lessons.replicas.buckets import MIB
from ddp_lessons.sharded_optimizer import (
    OverlappedOptimizer,
    OwnerOptimizer,
    Zero1Optimizer,
    Zero2Optimizer,
    held_bytes,
)

WORLD_SIZES = (2, 4)
LIMIT = 1.00
LIMITED = "OverlappedOptimizer"
TORCHS = ("torch's", "torch's, views")


def make(name):
    """
    Return the model and the optimizer of a way, by the way's name. The inner optimizer is Adam.
    """
    from torch.distributed.optim import ZeroRedundancyOptimizer

    bare, adam = model().to(rank_device()), torch.optim.Adam
    if name == "DDP, not sharded":
        wrapped = DistributedDataParallel(bare, gradient_as_bucket_view=True)
        return wrapped, adam(wrapped.parameters())
    if name in TORCHS:
        wrapped, views = (
            DistributedDataParallel(bare, gradient_as_bucket_view=True),
            "views" in name,
        )
        options = {"parameters_as_bucket_view": views}
        return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), adam, **options)
    if name == "OverlappedOptimizer":
        return bare, OverlappedOptimizer(bare, adam)
    kinds = {one.__name__: one for one in (OwnerOptimizer, Zero1Optimizer, Zero2Optimizer)}
    return bare, kinds[name](bare.parameters(), adam)


WAYS = (
    "DDP, not sharded", *TORCHS, "OwnerOptimizer", "Zero1Optimizer", "Zero2Optimizer",
    "OverlappedOptimizer",
)  # fmt: skip


def measure(rank, num_repeats):
    """
    Run all rounds on one rank. Return {way: its seconds of each step, and its bytes of state}.
    """
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch's own, on import
    torch.manual_seed(rank)
    images = torch.randn(NUM_SAMPLES, 1024).to(rank_device())
    pairs = {name: make(name) for name in WAYS}
    samples: dict = {name: [] for name in WAYS}
    for number in range(NUM_WARM_UP + num_repeats):
        for name in in_turns(list(WAYS), number):
            seconds = step(*pairs[name], images)
            if number >= NUM_WARM_UP:
                samples[name].append(seconds)
    found = {}
    for name, (replica, optimizer) in pairs.items():
        holder = optimizer.optim if name in TORCHS else optimizer
        found[name] = {
            "step_s": samples[name],
            "state_bytes": held_bytes(replica, holder)["optimizer"],
        }
    return found


def compare(ranks):
    """
    Return {way: its row of the table} for one number of ranks.

    Ratios are to the faster of torch's ways.
    """
    measured = ranks[0]
    reference = min(TORCHS, key=lambda name: median(measured[name]["step_s"]))
    for name in WAYS:
        row = measured[name]
        pairs = zip(row["step_s"], measured[reference]["step_s"], strict=True)
        row["ratio"] = median(ours / theirs for ours, theirs in pairs)
        row["state_bytes"] = max(answer[name]["state_bytes"] for answer in ranks)
    return measured


def show(num_ranks, measured):
    """
    Print the table for one number of ranks.
    """
    table = Table(title=f"{num_ranks} ranks", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("Optimizer", "ms a step", "least", "of torch's", "state, MiB", ""):
        table.add_column(heading, justify="left" if heading == "Optimizer" else "right")
    for name in WAYS:
        row, limit = measured[name], ""
        if name == LIMITED:
            limit = "pass" if row["ratio"] <= LIMIT else "FAIL"
        table.add_row(
            name,
            f"{1e3 * median(row['step_s']):.1f}",
            f"{1e3 * min(row['step_s']):.1f}",
            f"{row['ratio']:.2f}",
            f"{row['state_bytes'] / MIB:.1f}",
            limit,
        )
    Console(highlight=False, width=100).print(table)


def main():
    """
    Measure, print the tables, and return 1 if ours misses its limit.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15, help="rounds (15)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, nargs="*", default=WORLD_SIZES, help="(2 and 4)")
    parser.add_argument("--json", type=Path, help="write every sample here")
    parser.add_argument("--no-fail", action="store_true", help="only report")
    arguments = parser.parse_args()
    found = {}
    for num_ranks in arguments.ranks:
        answers = run_ranks(num_ranks, measure, arguments.repeats, device=arguments.device)
        found[num_ranks] = compare(answers)
        show(num_ranks, found[num_ranks])
    if arguments.json:
        data = {"machine": describe_machine(), "limit": LIMIT, "ranks": found}
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")
    missed = any(measured[LIMITED]["ratio"] > LIMIT for measured in found.values())
    return int(missed and not arguments.no_fail)


if __name__ == "__main__":
    sys.exit(main())
