"""
Measure each replica against torch's DDP: time of a step, number of collectives, overlap.

    python benchmarks/replicas.py                    # 60 rounds, 2 ranks, 10 million parameters
    python benchmarks/replicas.py --repeats 120 --json replicas.json

In each round every replica does one step, in an order that rotates, so that a slow moment slows
all alike. A sample is the time of the slowest rank. Every 10 rounds the ranks are started again:
which cores and which memory a process gets is luck that lasts as long as the process. The limit is
on the median of the ratios within rounds, to DDP with gradients as views, as our replicas have
them. It applies to our overlapped replica in shared memory, or, on a GPU, to our overlapped
replica. "Overlap" is the share of communication that backward hides, "exposed" the time of
communication after the last gradient. Both are unknown for replicas that send no gradient. Our
overlapped replicas have smaller buckets than DDP's default, so DDP is also shown with buckets of
that size.
"""

import argparse
import functools
import itertools
import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from figures import RATIO, Figure
from machine import describe_machine
from rank_processes import in_turns, run_starts, settle
from rich.console import Console
from rich.table import Table
from step_overlap import look_inside
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.ddp import parameter_bytes
from ddp_lessons.process_group import rank_device
from ddp_lessons.replicas import (
    BucketedReplica,
    FlatReplica,
    NaiveReplica,
    OverlappedReplica,
    SharedMemoryReplica,
)
from ddp_lessons.replicas.buckets import MIB
from ddp_lessons.replicas.overlapped import OVERLAPPED_CAP_BYTES

NUM_RANKS = 2
ROUNDS_OF_A_START = 10
NUM_WARM_UP = 3
NUM_SAMPLES = 32
LIMIT = 0.95
REFERENCE = "DDP, views"
KINDS = {
    "DDP": DistributedDataParallel,
    "DDP, views": functools.partial(DistributedDataParallel, gradient_as_bucket_view=True),
    "DDP, views, our buckets": functools.partial(
        DistributedDataParallel,
        gradient_as_bucket_view=True,
        bucket_cap_mb=OVERLAPPED_CAP_BYTES / MIB,
    ),
    "naive": NaiveReplica,
    "flat": FlatReplica,
    "bucketed": BucketedReplica,
    "overlapped": OverlappedReplica,
    "overlapped, copies": functools.partial(OverlappedReplica, gradient_as_bucket_view=False),
}
SHARED = "overlapped, shared memory"


def kinds_on(device):
    """
    Return {name: replica} of those that run on a kind of device, and the name of the limited one.
    """
    if device == "cpu":
        return {**KINDS, SHARED: SharedMemoryReplica}, SHARED
    return KINDS, "overlapped"


def model():
    """
    Make a network of 9.9 million parameters: 39.6 MB of gradients.
    """
    torch.manual_seed(0)
    widths = (1024, 2048, 2048, 1750, 10)
    layers = [
        layer
        for inputs, outputs in itertools.pairwise(widths)
        for layer in (nn.Linear(inputs, outputs), nn.ReLU())
    ]
    return nn.Sequential(*layers[:-1])


def step(replica, optimizer, images):
    """
    Do one training step. Return its seconds.
    """
    dist.barrier()
    settle(images.device)
    begin_s = time.perf_counter()
    optimizer.zero_grad()
    replica(images).square().mean().backward()
    optimizer.step()
    settle(images.device)
    return time.perf_counter() - begin_s


def measure(rank, num_repeats):
    """
    Run all rounds on one rank. Return the measurements of each kind of replica.
    """
    torch.manual_seed(rank)
    images = torch.randn(NUM_SAMPLES, 1024).to(rank_device())
    kinds, _ = kinds_on(images.device.type)
    replicas = {name: kind(model().to(rank_device())) for name, kind in kinds.items()}
    optimizers = {name: torch.optim.SGD(r.parameters(), lr=0.01) for name, r in replicas.items()}
    samples = {name: [] for name in kinds}
    names = list(kinds)
    for number in range(NUM_WARM_UP + num_repeats):
        for name in in_turns(names, number):
            seconds = step(replicas[name], optimizers[name], images)
            if number >= NUM_WARM_UP:
                samples[name].append(seconds)
    answer = {name: {"step_s": samples[name]} for name in names}
    answer["parameter_bytes"] = parameter_bytes(replicas["DDP"])
    if images.is_cuda:
        return answer  # our clock sees when a GPU gets its work, not when it does it
    for name, replica in replicas.items():
        if name == SHARED:
            continue  # its messages say that gradients may be read, not how long reading takes
        num_collectives, overlaps = look_inside(
            replica, functools.partial(step, replica, optimizers[name], images)
        )
        answer[name] |= {
            "num_collectives": num_collectives,
            "overlap": median(found.share for found in overlaps),
            "exposed_s": median(found.communication_s - found.overlap_s for found in overlaps),
        }
    return answer


def measure_starts(num_ranks, num_repeats, device):
    """
    Distribute rounds over several starts of the ranks, and combine their measurements.

    Args:
        num_ranks: Number of ranks.
        num_repeats: Number of rounds in all starts together.
        device: "cpu" or "cuda".

    Returns:
        dict: The entries that `measure` returns. Each time of a step is the slowest rank's, each
        other number is the median over the starts.
    """
    num_starts = max(num_repeats // ROUNDS_OF_A_START, 1)
    starts = list(run_starts(num_starts, num_repeats, num_ranks, measure, device=device))
    answer = {"parameter_bytes": starts[0][0]["parameter_bytes"]}
    for name in kinds_on(device)[0]:
        answer[name] = {
            key: median(ranks[0][name][key] for ranks in starts)
            for key in starts[0][0][name]
            if key != "step_s"
        }
        answer[name]["step_s"] = [
            max(times)
            for ranks in starts
            for times in zip(*(rank[name]["step_s"] for rank in ranks), strict=True)
        ]
    return answer


def add_ratios(measured, names):
    """
    Add "ratio" to each kind: the median of the ratios to the reference's times within rounds.
    """
    reference = measured[REFERENCE]["step_s"]
    for name in names:
        pairs = zip(measured[name]["step_s"], reference, strict=True)
        measured[name]["ratio"] = median(mine / theirs for mine, theirs in pairs)


def make_figures(measured, num_ranks, names, limited):
    """
    Return a Figure for each kind but the reference: milliseconds of a step, compared with it.
    """
    steps_ms = {name: tuple(1e3 * s for s in measured[name]["step_s"]) for name in names}
    reference = REFERENCE, steps_ms[REFERENCE]
    return [
        Figure(
            f"step, {name}, {num_ranks} ranks", "ms", steps_ms[name], *reference,
            LIMIT if name == limited else None, RATIO, is_paired=True,
        )
        for name in names
        if name != REFERENCE
    ]  # fmt: skip


def show(measured, names, limited):
    """
    Print the table of all kinds of replicas.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in (
        "Replica",
        "ms a step",
        "least",
        f"of {REFERENCE}",
        "collectives",
        "overlap",
        "exposed ms",
        "",
    ):
        table.add_column(heading, justify="left" if heading == "Replica" else "right")
    for name in names:
        row, limit, inside = measured[name], "", ["", "", ""]
        if "overlap" in row:
            inside = [str(row["num_collectives"]), f"{row['overlap']:.0%}"]
            inside.append(f"{1e3 * row['exposed_s']:.1f}")
        if name == limited:
            limit = "pass" if row["ratio"] <= LIMIT else "FAIL"
        table.add_row(
            name,
            f"{1e3 * median(row['step_s']):.1f}",
            f"{1e3 * min(row['step_s']):.1f}",
            f"{row['ratio']:.2f}",
            *inside,
            limit,
        )
    Console(highlight=False, width=100).print(table)


def main():
    """
    Measure, print the table, and return 1 if the replica with the limit misses it.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--repeats", type=int, default=60, help="rounds (60)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=NUM_RANKS, help="number of ranks (2)")
    parser.add_argument("--json", type=Path, help="write every sample here")
    parser.add_argument("--no-fail", action="store_true", help="only report")
    arguments = parser.parse_args()
    measured = measure_starts(arguments.ranks, arguments.repeats, arguments.device)
    kinds, limited = kinds_on(arguments.device)
    add_ratios(measured, kinds)
    show(measured, kinds, limited)
    if arguments.json:
        data = {"machine": describe_machine(), "num_ranks": arguments.ranks, "measured": measured}
        figures = make_figures(measured, arguments.ranks, kinds, limited)
        data["figures"] = [figure.as_data() for figure in figures]
        arguments.json.write_text(json.dumps(data, indent=1) + "\n")
    missed = measured[limited]["ratio"] > LIMIT
    return int(missed and not arguments.no_fail)


if __name__ == "__main__":
    sys.exit(main())
