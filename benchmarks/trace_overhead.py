"""
Measure what tracing costs a training step under DDP: the trace off, off again, and on.

    python benchmarks/trace_overhead.py                 # 81 rounds, 2 ranks, two models
    python benchmarks/trace_overhead.py --repeats 201 --json trace_overhead.json

In each round every way does some steps, in an order that rotates, so that a slow moment slows all
ways alike. A ratio is the median of the ratios within rounds. The distance of "off, again" from 1
shows how much of a ratio is noise. The time of switching the trace on and off is not part of a
step, and is shown in a column of its own.

The cost of the trace depends on the number of events, not on their size: some 5 microseconds for a
gradient and 150 for a collective. So its share of a step falls as the model grows. The limit is on
the model of replicas.py. The other model is so small that it does not need two ranks, and shows the
worst share.
"""

import argparse
import contextlib
import itertools
import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from machine import describe_machine
from rank_processes import in_turns, run_ranks
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.trace import trace

NUM_RANKS = 2
NUM_WARM_UP = 2
LIMIT = 1.05
MODELS = {
    "9.9 million": {"widths": (1024, 2048, 2048, 1750, 10), "num_samples": 32, "num_steps": 3},
    "1.1 million": {"widths": (512, 512, 512, 512, 512, 100), "num_samples": 64, "num_steps": 10},
}
LIMITED = "9.9 million"
WAYS = {
    "off": lambda model: contextlib.nullcontext(),
    "off, again": lambda model: contextlib.nullcontext(),
    "on": trace,
}


def make_model(widths):
    """
    Make a network of linear layers with ReLU between them.
    """
    torch.manual_seed(0)
    layers = [
        layer
        for inputs, outputs in itertools.pairwise(widths)
        for layer in (nn.Linear(inputs, outputs), nn.ReLU())
    ]
    return nn.Sequential(*layers[:-1])


def steps_s(model, optimizer, batch, num_steps):
    """
    Do some training steps. Return the median of their seconds, and the mean CPU seconds of a step.
    """
    dist.barrier()
    cpu_began, times = time.process_time(), []
    for _ in range(num_steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return median(times), (time.process_time() - cpu_began) / num_steps


def measure(rank, num_repeats):
    """
    Run all rounds on one rank. Return {model: its samples} (see `measure_model`).
    """
    return {name: measure_model(num_repeats, **what) for name, what in MODELS.items()}


def measure_model(num_repeats, widths, num_samples, num_steps):
    """
    Run all rounds of one model. Return its number of events a step, and the samples of each way.
    """
    model = DistributedDataParallel(make_model(widths))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(num_samples, widths[0])
    names = list(WAYS)
    samples = {name: {"step_s": [], "cpu_s": [], "switch_s": []} for name in names}
    num_events = 0
    for number in range(NUM_WARM_UP + num_repeats):
        for name in in_turns(names, number):
            block, began = WAYS[name](model), time.perf_counter()
            with block as events:
                entered = time.perf_counter()
                seconds, cpu_s = steps_s(model, optimizer, batch, num_steps)
                left = time.perf_counter()
            switch_s = entered - began + time.perf_counter() - left
            if name == "on":
                num_events = len(events) // num_steps
            if number >= NUM_WARM_UP:
                samples[name]["step_s"].append(seconds)
                samples[name]["cpu_s"].append(cpu_s)
                samples[name]["switch_s"].append(switch_s)
    return {"num_events": num_events, "samples": samples}


def show(name, answer):
    """
    Print the table of one model. Return {way: ratio to the trace switched off}.
    """
    samples = answer["samples"]
    table = Table(
        title=f"{name} parameters, {NUM_RANKS} ranks, {answer['num_events']} events a step"
    )
    for heading in ("Trace", "Step, ms", "Least, ms", "CPU, ms", "Of off", "Switching, ms"):
        table.add_column(heading, justify="left" if heading == "Trace" else "right")
    ratios = {}
    for way in WAYS:
        pairs = zip(samples[way]["step_s"], samples["off"]["step_s"], strict=True)
        ratios[way] = median(ours / off for ours, off in pairs)
        middle_ms = {part: 1000 * median(taken) for part, taken in samples[way].items()}
        table.add_row(
            way,
            f"{middle_ms['step_s']:.2f}",
            f"{1000 * min(samples[way]['step_s']):.2f}",
            f"{middle_ms['cpu_s']:.2f}",
            f"{ratios[way]:.3f}",
            f"{middle_ms['switch_s']:.2f}",
        )
    Console().print(table)
    return ratios


def main():
    """
    Measure, print a table, and return 1 if the trace costs more than its limit.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--repeats", type=int, default=81, help="rounds (81)")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--no-fail", action="store_true", help="only report")
    arguments = parser.parse_args()
    answers = run_ranks(NUM_RANKS, measure, arguments.repeats)[0]
    ratios = {name: show(name, answer) for name, answer in answers.items()}
    ratio = ratios[LIMITED]["on"]
    is_kept = ratio <= LIMIT
    verdict = "pass" if is_kept else "FAIL"
    print(f"{verdict}: {ratio:.3f} of a step without the trace, at most {LIMIT}")
    if arguments.json:
        record = {
            "machine": describe_machine(),
            "limit": LIMIT,
            "ratios": ratios,
            "models": answers,
        }
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0 if is_kept or arguments.no_fail else 1


if __name__ == "__main__":
    sys.exit(main())
