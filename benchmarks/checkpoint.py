"""
Measure saving and loading a run against a plain torch.save and torch.load of the same bytes.

    python benchmarks/checkpoint.py                     # 5 rounds, 2 ranks, 96 MiB
    python benchmarks/checkpoint.py --repeats 9 --mib 384 --json checkpoint.json

In each round every way saves and loads once, in an order that rotates, so that a slow moment slows
all alike. A sample is the time of the slowest rank, after a barrier. A plain torch.save returns
before the bytes are on the disk; "and fsync" waits for them, as all of ours do. The stall is the
time for which `save_async` blocks training; the whole save is timed until `wait` returns.
Limits: the stall takes no longer than a plain torch.save, and no way of loading, checksums
included, takes more than 2.5 x a plain torch.load.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from machine import describe_machine
from rank_processes import in_turns, run_ranks
from rich.console import Console
from rich.table import Table

from ddp_lessons import checkpoint
from ddp_lessons.checkpoint import Checkpoints, Run

NUM_RANKS = 2
NUM_LAYERS = 8
STALL_LIMIT = 1.0  # a save in the background must block training only briefly
LOAD_LIMIT = 2.5
STATE_PER_WEIGHT = 3  # each weight, and AdamW's two moments of it


def make_run(num_mib):
    """
    Make a Run of `num_mib` MiB, weights and moments together, after one step.
    """
    torch.manual_seed(0)
    width = int((num_mib * 2**20 / 4 / STATE_PER_WEIGHT / NUM_LAYERS) ** 0.5)
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(NUM_LAYERS)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return Run(model, optimizer)


class Plain:
    """
    The plain way to save, without this package: rank 0 writes one file, every rank loads it.
    """

    def __init__(self, folder, run, syncs):
        self.path, self.run, self.syncs = folder / "plain.pt", run, syncs

    def save(self):
        state = checkpoint.capture(self.run)
        if dist.get_rank() == 0:
            with open(self.path, "wb") as file:
                torch.save(state, file)
                if self.syncs:
                    file.flush()
                    os.fsync(file.fileno())
        dist.barrier()

    def load(self):
        checkpoint.restore(self.run, torch.load(self.path, weights_only=True))


class Atomic(Plain):
    """
    The way of `checkpoint.save` and `checkpoint.load`: one file.
    """

    def save(self):
        checkpoint.save(checkpoint.capture(self.run), self.path)

    def load(self):
        checkpoint.restore(self.run, checkpoint.load(self.path))


class Folder:
    """
    The way of `Checkpoints`: a folder with checksums of every file.

    `how` is the name of the method that saves.
    """

    def __init__(self, folder, run, how):
        self.run, self.checkpoints = run, Checkpoints(folder, keep_last=1)
        self.start = getattr(self.checkpoints, how)

    def save(self):
        self.start(self.run)
        self.stalled_until = time.perf_counter()
        self.checkpoints.wait()

    def load(self):
        self.checkpoints.load(self.run)


WAYS = {
    "torch.save": lambda folder, run: Plain(folder, run, syncs=False),
    "torch.save and fsync": lambda folder, run: Plain(folder, run, syncs=True),
    "checkpoint.save": lambda folder, run: Atomic(folder, run, syncs=True),
    "Checkpoints.save": lambda folder, run: Folder(folder, run, "save"),
    "Checkpoints.save_sharded": lambda folder, run: Folder(folder, run, "save_sharded"),
    "Checkpoints.save_async": lambda folder, run: Folder(folder, run, "save_async"),
}


def slowest_s(act):
    """
    Return (time of the start, seconds that the slowest rank takes). The start follows a barrier.
    """
    dist.barrier()
    began = time.perf_counter()
    act()
    seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return began, seconds.item()


def measure(rank, root, num_mib, num_repeats):
    """
    Run all rounds on one rank. Return the seconds of every save, stall and load of each way.
    """
    run = make_run(num_mib)
    ways = {}
    for number, name in enumerate(WAYS):
        folder = Path(root, str(number))
        folder.mkdir(exist_ok=True)
        ways[name] = WAYS[name](folder, run)
    names = list(WAYS)
    samples = {name: {"save_s": [], "stall_s": [], "load_s": []} for name in names}
    for number in range(1 + num_repeats):  # the first round warms up, and is not counted
        run.step = number
        for name in in_turns(names, number):
            began, save_s = slowest_s(ways[name].save)
            stalled_until = getattr(ways[name], "stalled_until", None)
            stall_s = save_s if stalled_until is None else stalled_until - began
            _, load_s = slowest_s(ways[name].load)
            if number > 0:
                samples[name]["save_s"].append(save_s)
                samples[name]["stall_s"].append(stall_s)
                samples[name]["load_s"].append(load_s)
    for way in ways.values():
        if isinstance(way, Folder):
            way.checkpoints.close()
    return samples


def main():
    """
    Measure, and print a table: MiB a second, seconds, and ratios to torch.save within rounds.

    Returns:
        int: Exit status: 1 if the asynchronous save blocks training for too long, or if a way of
        loading takes too long.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="rounds (5)")
    parser.add_argument("--mib", type=int, default=96, help="MiB of weights and moments (96)")
    parser.add_argument("--where", type=Path, help="folder on the disk to measure (temporary)")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--no-fail", action="store_true", help="only report")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.where, prefix="bench-checkpoint-") as root:
        answers = run_ranks(NUM_RANKS, measure, root, arguments.mib, arguments.repeats)
    samples = answers[0]
    table = Table(title=f"A run of {arguments.mib} MiB, {NUM_RANKS} ranks")
    headings = ("Way", "Save, MiB/s", "Ratio", "Stall, ms", "Ratio", "Load, MiB/s", "Ratio")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "Way" else "right")
    ratios = {}
    for name, parts in samples.items():
        ratios[name] = {
            part: median(a / b for a, b in zip(parts[part], plain, strict=True))
            for part, plain in samples["torch.save"].items()
        }
        save_s, stall_s, load_s = (median(parts[part]) for part in ("save_s", "stall_s", "load_s"))
        table.add_row(
            name,
            f"{arguments.mib / save_s:.0f}",
            f"{ratios[name]['save_s']:.2f}",
            f"{1000 * stall_s:.0f}",
            f"{ratios[name]['stall_s']:.2f}",
            f"{arguments.mib / load_s:.0f}",
            f"{ratios[name]['load_s']:.2f}",
        )
    Console(width=110).print(table)
    print("Ratios are of seconds, to torch.save in the same round: below 1 is faster.")
    stall = ratios["Checkpoints.save_async"]["stall_s"]
    slowest = max(ratios, key=lambda name: ratios[name]["load_s"])
    load = ratios[slowest]["load_s"]
    is_kept = [stall <= STALL_LIMIT, load <= LOAD_LIMIT]
    verdicts = ["pass" if kept else "FAIL" for kept in is_kept]
    print(
        f"{verdicts[0]}: save_async stalls training for {stall:.2f} of a torch.save, at most "
        f"{STALL_LIMIT}\n"
        f"{verdicts[1]}: the slowest way to load, that of {slowest}, takes {load:.2f} of a "
        f"torch.load, at most {LOAD_LIMIT}"
    )
    if arguments.json:
        record = {
            "machine": describe_machine(),
            "num_ranks": NUM_RANKS,
            "num_mib": arguments.mib,
            "stall_limit": STALL_LIMIT,
            "load_limit": LOAD_LIMIT,
            "ratios": ratios,
            "samples": samples,
        }
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0 if all(is_kept) or arguments.no_fail else 1


if __name__ == "__main__":
    sys.exit(main())
