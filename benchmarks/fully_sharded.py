"""
Measure a training step of FullySharded against torch's `fully_shard`, and the peak of memory.

    python benchmarks/fully_sharded.py                # 15 rounds, on 2 and on 4 ranks
    python benchmarks/fully_sharded.py --repeats 31 --json fully_sharded.json

Model and samples are those of replicas.py, a unit is a layer, the optimizer is Adam. In each round
every way does one step, in an order that rotates, so that a slow moment slows all alike. One limit
is on the median of the ratios of times within rounds, the other on the ratio of the peaks: the most
bytes of tensors that are alive at one time in a step, parameters and state included.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import median

import torch
from machine import describe_machine
from rank_processes import in_turns, run_ranks
from replicas import NUM_SAMPLES, NUM_WARM_UP, model, step
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.beyond_ddp.fsdp import FullySharded, NaiveSharded
from ddp_lessons.checks.beyond_ddp.live_tensors import Alive
from ddp_lessons.process_group import rank_device
from ddp_lessons.replicas.buckets import MIB

WORLD_SIZES = (2, 4)
LIMIT = 1.10
TORCHS, LIMITED = "fully_shard", "FullySharded"
WAYS = ("DDP", "NaiveSharded", LIMITED, TORCHS)


class Peak(Alive):
    """
    A mode that counts the bytes that are alive after each operation.

    Attributes:
        most_bytes: The largest count so far.
    """

    def __init__(self):
        super().__init__(math.inf)
        self.most_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(function, types, args, kwargs)
        self.most_bytes = max(self.most_bytes, self.num_bytes())
        return result


def make(name):
    """
    Return the model and the Adam optimizer of a way, by the way's name.
    """
    from torch.distributed.fsdp import fully_shard

    bare = model().to(rank_device())
    if name == TORCHS:
        for layer in bare:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(bare)
    kinds = {"DDP": DistributedDataParallel, "NaiveSharded": NaiveSharded, LIMITED: FullySharded}
    wrapped = kinds[name](bare) if name in kinds else bare
    return wrapped, torch.optim.Adam(wrapped.parameters())


def peak_bytes(name, images):
    """
    Return the most bytes that are alive at one time in the second step.
    """
    peak = Peak()
    with peak:
        pair = make(name)
        for _ in range(2):
            step(*pair, images)
            peak.most_bytes, found = 0, peak.most_bytes
    return found


def measure(rank, num_repeats):
    """
    Run all rounds on one rank. Return {way: its seconds of each step, and its peak of bytes}.
    """
    torch.manual_seed(rank)
    images = torch.randn(NUM_SAMPLES, 1024).to(rank_device())
    pairs = {name: make(name) for name in WAYS}
    samples: dict = {name: [] for name in WAYS}
    for number in range(NUM_WARM_UP + num_repeats):
        for name in in_turns(list(WAYS), number):
            seconds = step(*pairs[name], images)
            if number >= NUM_WARM_UP:
                samples[name].append(seconds)
    pairs.clear()
    return {
        name: {"step_s": samples[name], "peak_bytes": peak_bytes(name, images)} for name in WAYS
    }


def compare(ranks):
    """
    Return {way: its row of the table} for one number of ranks, with ratios to torch's way.
    """
    measured = ranks[0]
    for name in WAYS:
        measured[name]["peak_bytes"] = max(answer[name]["peak_bytes"] for answer in ranks)
    for name in WAYS:
        row, theirs = measured[name], measured[TORCHS]
        pairs = zip(row["step_s"], theirs["step_s"], strict=True)
        row["ratio"] = median(one / other for one, other in pairs)
        row["peak_ratio"] = row["peak_bytes"] / theirs["peak_bytes"]
    return measured


def is_within(row):
    """
    Tell whether a row is within both limits.
    """
    return max(row["ratio"], row["peak_ratio"]) <= LIMIT


def show(num_ranks, measured):
    """
    Print the table for one number of ranks.
    """
    table = Table(title=f"{num_ranks} ranks", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("Model", "ms a step", "least", "of torch's", "peak, MiB", "of torch's", ""):
        table.add_column(heading, justify="left" if heading == "Model" else "right")
    for name in WAYS:
        row = measured[name]
        table.add_row(
            name,
            f"{1e3 * median(row['step_s']):.1f}",
            f"{1e3 * min(row['step_s']):.1f}",
            f"{row['ratio']:.2f}",
            f"{row['peak_bytes'] / MIB:.1f}",
            f"{row['peak_ratio']:.2f}",
            ("pass" if is_within(row) else "FAIL") if name == LIMITED else "",
        )
    Console(highlight=False, width=100).print(table)


def main():
    """
    Measure, print the tables, and return 1 if ours misses a limit.
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
    missed = not all(is_within(measured[LIMITED]) for measured in found.values())
    return int(missed and not arguments.no_fail)


if __name__ == "__main__":
    sys.exit(main())
