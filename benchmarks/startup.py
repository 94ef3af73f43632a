"""
Measure starts, cells, memory and recovery, side by side with torchrun and plain ipyparallel.

    python benchmarks/startup.py [--repeats 5] [--only NAME ...] [--no-fail]

benchmarks/README.md explains each figure.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import cells
import footprint
import recovery
import sizes
import starting
from figures import (
    RATIO,
    Plan,
    figures_document,
    make_figures,
    missed,
    show_figures,
    write_document,
)
from kernel import BenchmarkFailed
from machine import describe_machine, machine_slug

from ddp_lessons.ranks.system import clocks

RESULTS = Path(__file__).with_name("results")
MEASUREMENTS = {
    "start": starting.measure,
    "cells": cells.measure,
    "memory": footprint.measure,
    "recovery": recovery.measure,
    "sizes": sizes.measure,
}
FEWEST_REPEATS = 5
_STOCK_PX = "ipyparallel's %%px, same ranks"
ANYWHERE = ("start", "cells")
"""
The measurements that can also be made on GPUs, and with another number of ranks.
"""

_FIRST = "first all-reduce, {} ranks"
PLANS = (
    Plan(_FIRST.format(starting.NUM_RANKS), "s", "start_ours_s",
         "torchrun, whole command", "start_torchrun_s", 0.4, RATIO),
    Plan(_FIRST.format(starting.NUM_RANKS), "s", "start_ours_s",
         "torchrun, up to its all-reduce", "reach_torchrun_s"),
    Plan(_FIRST.format(starting.NUM_RANKS), "s", "start_ours_s",
         "ipyparallel as it comes", "start_stock_s"),
    Plan("%%px cell: x = 1", "ms", "cell_plain_ours_ms",
         _STOCK_PX, "cell_plain_stock_ms", 10.0),
    Plan("%%px cell: x = 1, 95 of 100 within", "ms", "cell_plain_ours_p95_ms",
         _STOCK_PX, "cell_plain_stock_p95_ms"),
    Plan("%%px cell: all-reduce", "ms", "cell_all_reduce_ours_ms",
         _STOCK_PX, "cell_all_reduce_stock_ms"),
    Plan("%%px cell: all-reduce, 95 of 100 within", "ms", "cell_all_reduce_ours_p95_ms",
         _STOCK_PX, "cell_all_reduce_stock_p95_ms"),
    Plan("memory of an idle rank", "MiB", "rank_mib",
         "a process that imported torch", "alone_mib", 80.0),
    Plan("memory of a rank that has trained", "MiB", "trained_rank_mib",
         "a process that imported torch", "alone_mib", 120.0),
    Plan("memory of a learner who has trained", "MiB", "learner_mib", limit=750.0),
    Plan("first DDP and optimizer: CPU of a rank", "s", "first_ddp_s", limit=0.3),
    Plan("memory of 4 ranks and their helpers", "MiB", "started_mib",
         "4 such processes", "all_alone_mib"),
    Plan("a rank raises: prompt", "s", "raise_prompt_s", limit=2.0),
    Plan("a rank raises: next all-reduce done", "s", "raise_good_s"),
    Plan("a rank is killed: prompt", "s", "die_prompt_s", limit=2.0),
    Plan("a rank is killed: next all-reduce done", "s", "die_good_s"),
    Plan("deadlock: prompt", "s", "deadlock_prompt_s", limit=2.0),
    Plan("deadlock: next all-reduce done", "s", "deadlock_good_s"),
    Plan("deadlock, Stop: prompt", "s", "stop_prompt_s", limit=2.0),
    Plan("deadlock, Stop: next all-reduce done", "s", "stop_good_s"),
)  # fmt: skip
_START_LIMITS_S = {4: 1.1, 8: 1.2, 16: 1.5, 32: 2.2}
_ROUND_TRIP_LIMITS_MS = {4: 10.0, 8: 12.0, 16: 18.0, 32: 32.0}
_PROMPT_LIMIT_S = 2.0
SIZE_PLANS = (
    *(Plan(f"start to first all-reduce, {n} ranks", "s", f"start_{n}_s", limit=_START_LIMITS_S[n])
      for n in sizes.SIZES),
    *(Plan(f"%%px cell from outside, {n} ranks", "ms", f"round_trip_{n}_ms",
           limit=_ROUND_TRIP_LIMITS_MS[n]) for n in sizes.SIZES),
    *(Plan(f"{fault.name}: prompt, {n} ranks", "s", f"{fault.name}_{n}_s", limit=_PROMPT_LIMIT_S)
      for fault in recovery.FAULTS for n in sizes.SIZES),
)  # fmt: skip


def parse_arguments(argv):
    """
    Return the command line's arguments.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument(
        "--repeats", type=int, default=FEWEST_REPEATS, metavar="N", help="rounds (default: 5)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=MEASUREMENTS, default=[], metavar="NAME",
        help=f"measure only some of: {', '.join(MEASUREMENTS)}",
    )  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--ranks", type=int, default=starting.NUM_RANKS, metavar="N", help="of start and cells (4)"
    )
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 if a limit is missed")
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="where to write (default: benchmarks/results/, if all was measured 5 times or more)",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1 or arguments.ranks < 1:
        parser.error("--repeats, --ranks: expected a whole number from 1")
    is_elsewhere = arguments.device != "cpu" or arguments.ranks != starting.NUM_RANKS
    if is_elsewhere and not (arguments.only and set(arguments.only) <= set(ANYWHERE)):
        parser.error(f"--device, --ranks: expected with --only {' '.join(ANYWHERE)}")
    return arguments


def measure_all(names, num_rounds, num_ranks=starting.NUM_RANKS, device="cpu"):
    """
    Measure everything once in each round, so that a slow minute slows all measurements alike.

    Args:
        names: Names of the measurements, keys of `MEASUREMENTS`.
        num_rounds: Number of rounds.
        num_ranks, device: Number of ranks, and "cpu" or "cuda", for the measurements in `ANYWHERE`.

    Returns:
        dict: {name of a sample: [its number in each round]}.
    """
    samples = {}
    for round_number in range(num_rounds):
        for name in names:
            began_s = time.monotonic()
            where = (num_ranks, device) if name in ANYWHERE else ()
            for sample, number in MEASUREMENTS[name](round_number, *where).items():
                samples.setdefault(sample, []).append(number)
            seconds = time.monotonic() - began_s
            print(f"round {round_number + 1} of {num_rounds}: {name}, {seconds:.0f} s", flush=True)
    return samples


def plans_for(num_ranks):
    """
    Return the Plans of the table, with the measured number of ranks in their names.
    """
    usual, measured = _FIRST.format(starting.NUM_RANKS), _FIRST.format(num_ranks)
    return [replace(plan, name=plan.name.replace(usual, measured)) for plan in PLANS]


def results_file(arguments, machine):
    """
    Return the file to write, or None: a short or partial run must not replace a whole one.
    """
    if arguments.json is not None:
        return arguments.json
    if arguments.only or arguments.repeats < FEWEST_REPEATS:
        return None
    return RESULTS / f"startup-{machine_slug(machine)}.json"


def as_document(arguments, machine, figures):
    """
    Return the document to write: the command, the date, the machine, and every figure.
    """
    only = ["--only", *arguments.only] if arguments.only else []
    command = ["python benchmarks/startup.py", "--repeats", str(arguments.repeats), *only]
    if arguments.device != "cpu" or arguments.ranks != starting.NUM_RANKS:
        command += ["--device", arguments.device, "--ranks", str(arguments.ranks)]
    return figures_document(" ".join(command), machine, figures)


def main(argv):
    """
    Measure, print the results, and write them to a file.

    Returns:
        int: Exit status: 1 if a limit is missed or nothing could be measured.
    """
    arguments = parse_arguments(argv)
    if clocks.SCALE != 1:
        print(
            f"Stretched limits: unset {clocks.SCALE_VARIABLE} (got {clocks.SCALE}).",
            file=sys.stderr,
        )
        return 1
    machine = describe_machine()
    if machine["load"] > machine["num_cores"] / 2:
        print(f"This machine is busy (load {machine['load']}): do not trust these times.")
    names = [name for name in MEASUREMENTS if not arguments.only or name in arguments.only]
    try:
        samples = measure_all(names, arguments.repeats, arguments.ranks, arguments.device)
    except BenchmarkFailed as error:
        print(f"Could not measure: {error}", file=sys.stderr)
        return 1
    figures = make_figures((*plans_for(arguments.ranks), *SIZE_PLANS), samples)
    print()
    show_figures(figures)
    print(f"\nMedians of {arguments.repeats}, on {machine['cpu']}, {machine['num_cores']} cores.")
    path = results_file(arguments, machine)
    if path is not None:
        write_document(path, as_document(arguments, machine, figures))
        print(f"Written to {path.name}.")
    else:
        print(f"Not written: only a whole run of {FEWEST_REPEATS} rounds or more is kept.")
    for figure in missed(figures):
        print(f"Missed: {figure.name}, limit {figure.limit:g}.")
    return 1 if missed(figures) and not arguments.no_fail else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
