"""
Measure what tracing costs a training step under DDP: the trace off, off once more, and on.

    python benchmarks/trace_overhead.py                 # 41 rounds, 2 ranks, 1.1 million parameters
    python benchmarks/trace_overhead.py --repeats 201 --json trace_overhead.json

In each round every way does ten steps, in an order that rotates, so that a slow moment harms all
alike. The limit is on the median of the ratios within rounds; how far "off, again" is from 1 tells
how much of a ratio is noise. Switching on and off is not part of a step, and is shown apart.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from machine import describe_machine
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.process_group import join_group, leave_group
from ddp_lessons.trace import trace

NUM_RANKS = 2
NUM_WARM_UP = 2
NUM_STEPS = 10
NUM_SAMPLES = 64
LIMIT = 1.05
WAYS = {
    "off": lambda model: contextlib.nullcontext(),
    "off, again": lambda model: contextlib.nullcontext(),
    "on": trace,
}


def make_model():
    """
    Make a network of 1.1 million parameters, 4.2 MiB of gradients, for which DDP takes 2 buckets.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
        nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 100),
    )  # fmt: skip


def steps_s(model, optimizer, batch):
    """
    Do some training steps; return the median of their seconds, and the seconds of CPU of one.
    """
    dist.barrier()
    cpu_began, times = time.process_time(), []
    for _ in range(NUM_STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return median(times), (time.process_time() - cpu_began) / NUM_STEPS


def measure(rank, store_file, num_repeats, pipe):
    """
    Run all rounds on one rank; rank 0 sends the seconds of steps and of switching, by way.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    join_group(store_file, rank, NUM_RANKS)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(NUM_SAMPLES, 512)
    names = list(WAYS)
    samples = {name: {"step_s": [], "cpu_s": [], "switch_s": []} for name in names}
    num_events = 0
    for number in range(NUM_WARM_UP + num_repeats):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            block, began = WAYS[name](model), time.perf_counter()
            with block as events:
                entered = time.perf_counter()
                seconds, cpu_s = steps_s(model, optimizer, batch)
                left = time.perf_counter()
            switch_s = entered - began + time.perf_counter() - left
            if name == "on":
                num_events = len(events) // NUM_STEPS
            if number >= NUM_WARM_UP:
                samples[name]["step_s"].append(seconds)
                samples[name]["cpu_s"].append(cpu_s)
                samples[name]["switch_s"].append(switch_s)
    if rank == 0:
        pipe.send({"num_events": num_events, "samples": samples})
    leave_group()


def run(num_repeats):
    """
    Start the ranks and return what rank 0 measured.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            (rank, str(Path(folder, "store")), num_repeats, theirs) for rank in range(NUM_RANKS)
        ]
        members = [context.Process(target=measure, args=job, daemon=True) for job in jobs]
        for member in members:
            member.start()
        theirs.close()
        answer = ours.recv()
        for member in members:
            member.join()
    return answer


def main():
    """
    Measure, print a table, and return 1 if the trace costs more than its limit.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--repeats", type=int, default=41, help="rounds (41)")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    arguments = parser.parse_args()
    answer = run(arguments.repeats)
    samples = answer["samples"]
    table = Table(
        title=f"A step under DDP, {NUM_RANKS} ranks, {answer['num_events']} events a step"
    )
    for heading in ("Trace", "Step, ms", "Least, ms", "CPU, ms", "Of off", "Switching, ms"):
        table.add_column(heading, justify="left" if heading == "Trace" else "right")
    ratios = {}
    for name in WAYS:
        pairs = zip(samples[name]["step_s"], samples["off"]["step_s"], strict=True)
        ratios[name] = median(ours / off for ours, off in pairs)
        middle_ms = {part: 1000 * median(taken) for part, taken in samples[name].items()}
        table.add_row(
            name,
            f"{middle_ms['step_s']:.2f}",
            f"{1000 * min(samples[name]['step_s']):.2f}",
            f"{middle_ms['cpu_s']:.2f}",
            f"{ratios[name]:.3f}",
            f"{middle_ms['switch_s']:.2f}",
        )
    Console().print(table)
    is_kept = ratios["on"] <= LIMIT
    verdict = "pass" if is_kept else "FAIL"
    print(f"{verdict}: {ratios['on']:.3f} of a step without the trace, at most {LIMIT}")
    if arguments.json:
        record = {"machine": describe_machine(), "limit": LIMIT, "ratios": ratios, **answer}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
