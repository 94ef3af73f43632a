"""
Measure what a watchdog costs a training step under DDP: none, none again, ours, the naive one.

    python benchmarks/watchdog.py                 # 81 rounds, 2 ranks, two models
    python benchmarks/watchdog.py --repeats 201 --json watchdog.json

Models, steps and rounds are those of trace_overhead.py. In each round every way does some steps, in
an order that rotates, so that a slow moment slows all ways alike. A ratio is the median of the
ratios within rounds. The distance of "none, again" from 1 shows how much of a ratio is noise. A
watchdog is made and closed outside of the timed steps. `NaiveWatchdog` gets a heartbeat in each
step, which it needs.
"""

import argparse
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
from torch.nn.parallel import DistributedDataParallel
from trace_overhead import LIMITED, MODELS, NUM_RANKS, NUM_WARM_UP, make_model

from ddp_lessons.hangs import NaiveWatchdog, Watchdog

LIMIT = 1.05
LIMIT_S = 60.0
WAYS = {
    "none": lambda: None,
    "none, again": lambda: None,
    "Watchdog": lambda: Watchdog(LIMIT_S),
    "NaiveWatchdog": lambda: NaiveWatchdog(LIMIT_S),
}


def steps_s(model, optimizer, batch, num_steps, dog):
    """
    Do some training steps. Return the median of their seconds.
    """
    beat = getattr(dog, "beat", lambda: None)
    dist.barrier()
    times = []
    for _ in range(num_steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        beat()
        times.append(time.perf_counter() - began)
    return median(times)


def measure(rank, num_repeats):
    """
    Run all rounds on one rank. Return {model: {way: [seconds of a step in each round]}}.
    """
    return {name: measure_model(num_repeats, **what) for name, what in MODELS.items()}


def measure_model(num_repeats, widths, num_samples, num_steps):
    """
    Run all rounds of one model. Return {way: [seconds of a step in each round]}.
    """
    model = DistributedDataParallel(make_model(widths))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(num_samples, widths[0])
    samples: dict = {name: [] for name in WAYS}
    for number in range(NUM_WARM_UP + num_repeats):
        for name in in_turns(list(WAYS), number):
            dog = WAYS[name]()
            seconds = steps_s(model, optimizer, batch, num_steps, dog)
            if dog is not None:
                dog.close()
            if number >= NUM_WARM_UP:
                samples[name].append(seconds)
    return samples


def show(name, samples):
    """
    Print the table of one model. Return {way: ratio to no watchdog}.
    """
    table = Table(title=f"{name} parameters, {NUM_RANKS} ranks")
    for heading in ("Watchdog", "Step, ms", "Least, ms", "Of none"):
        table.add_column(heading, justify="left" if heading == "Watchdog" else "right")
    ratios = {}
    for way, seconds in samples.items():
        pairs = zip(seconds, samples["none"], strict=True)
        ratios[way] = median(ours / none for ours, none in pairs)
        table.add_row(
            way,
            f"{1000 * median(seconds):.2f}",
            f"{1000 * min(seconds):.2f}",
            f"{ratios[way]:.3f}",
        )
    Console().print(table)
    return ratios


def main():
    """
    Measure, print a table, and return 1 if the watchdog costs more than its limit.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--repeats", type=int, default=81, help="rounds (81)")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--no-fail", action="store_true", help="only report")
    arguments = parser.parse_args()
    answers = run_ranks(NUM_RANKS, measure, arguments.repeats)[0]
    ratios = {name: show(name, samples) for name, samples in answers.items()}
    ratio = ratios[LIMITED]["Watchdog"]
    is_kept = ratio <= LIMIT
    verdict = "pass" if is_kept else "FAIL"
    print(f"{verdict}: {ratio:.3f} of a step without a watchdog, at most {LIMIT}")
    if arguments.json:
        record = {"machine": describe_machine(), "limit": LIMIT, "ratios": ratios}
        arguments.json.write_text(json.dumps({**record, "models": answers}, indent=2) + "\n")
    return 0 if is_kept or arguments.no_fail else 1


if __name__ == "__main__":
    sys.exit(main())
