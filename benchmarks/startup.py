"""
Measure what must be fast, side by side with what one would use instead.

    python benchmarks/startup.py [--repeats 5] [--only NAME ...] [--no-fail]

benchmarks/README.md says what each figure is.
"""

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import cells
import footprint
import recovery
import starting
from figures import RATIO, Plan, make_figures, missed, show_figures
from kernel import BenchmarkFailed
from machine import describe_machine, machine_slug

RESULTS = Path(__file__).with_name("results")
MEASUREMENTS = {
    "start": starting.measure,
    "cells": cells.measure,
    "memory": footprint.measure,
    "recovery": recovery.measure,
}
FEWEST_REPEATS = 5
_STOCK_PX = "ipyparallel's %%px, same ranks"
PLANS = (
    Plan("first all-reduce, 4 ranks", "s", "start_ours_s",
         "torchrun, whole command", "start_torchrun_s", 0.5, RATIO),
    Plan("first all-reduce, 4 ranks", "s", "start_ours_s",
         "torchrun, up to its all-reduce", "reach_torchrun_s"),
    Plan("first all-reduce, 4 ranks", "s", "start_ours_s",
         "ipyparallel as it comes", "start_stock_s"),
    Plan("%%px cell: x = 1", "ms", "cell_plain_ours_ms",
         _STOCK_PX, "cell_plain_stock_ms", 15.0),
    Plan("%%px cell: x = 1, 95 of 100 within", "ms", "cell_plain_ours_p95_ms",
         _STOCK_PX, "cell_plain_stock_p95_ms"),
    Plan("%%px cell: all-reduce", "ms", "cell_all_reduce_ours_ms",
         _STOCK_PX, "cell_all_reduce_stock_ms"),
    Plan("%%px cell: all-reduce, 95 of 100 within", "ms", "cell_all_reduce_ours_p95_ms",
         _STOCK_PX, "cell_all_reduce_stock_p95_ms"),
    Plan("memory of an idle rank", "MiB", "rank_mib",
         "a process that imported torch", "alone_mib", 100.0),
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
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 if a limit is missed")
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="where to write (default: benchmarks/results/, if all was measured 5 times or more)",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1:
        parser.error("--repeats: expected a whole number from 1")
    return arguments


def measure_all(names, num_rounds):
    """
    Measure round by round, everything in each, so that a slow minute is shared by all.

    Args:
        names: What of MEASUREMENTS.
        num_rounds: Number of rounds.

    Returns:
        dict: From the name of a sample to its numbers, one a round.
    """
    samples = {}
    for round_number in range(num_rounds):
        for name in names:
            began_s = time.monotonic()
            for sample, number in MEASUREMENTS[name](round_number).items():
                samples.setdefault(sample, []).append(number)
            seconds = time.monotonic() - began_s
            print(f"round {round_number + 1} of {num_rounds}: {name}, {seconds:.0f} s", flush=True)
    return samples


def results_file(arguments, machine):
    """
    Return where to write, or None: a short or partial run must not replace a whole one.
    """
    if arguments.json is not None:
        return arguments.json
    if arguments.only or arguments.repeats < FEWEST_REPEATS:
        return None
    return RESULTS / f"startup-{machine_slug(machine)}.json"


def as_document(arguments, machine, figures):
    """
    Return what is written: how, when and on what it was measured, and every figure.
    """
    only = ["--only", *arguments.only] if arguments.only else []
    return {
        "command": " ".join(
            ["python benchmarks/startup.py", "--repeats", str(arguments.repeats), *only]
        ),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "figures": [figure.as_data() for figure in figures],
    }


def main(argv):
    """
    Measure, print, write.

    Returns:
        int: Exit status: 1 if a limit is missed or nothing could be measured.
    """
    arguments = parse_arguments(argv)
    machine = describe_machine()
    if machine["load"] > machine["num_cores"] / 2:
        print(f"This machine is busy (load {machine['load']}): do not trust these times.")
    names = [name for name in MEASUREMENTS if not arguments.only or name in arguments.only]
    try:
        samples = measure_all(names, arguments.repeats)
    except BenchmarkFailed as error:
        print(f"Could not measure: {error}", file=sys.stderr)
        return 1
    figures = make_figures(PLANS, samples)
    print()
    show_figures(figures)
    print(f"\nMedians of {arguments.repeats}, on {machine['cpu']}, {machine['num_cores']} cores.")
    path = results_file(arguments, machine)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        document = as_document(arguments, machine, figures)
        path.write_text(json.dumps(document, indent=1) + "\n")
        print(f"Written to {path.name}.")
    else:
        print(f"Not written: only a whole run of {FEWEST_REPEATS} rounds or more is kept.")
    for figure in missed(figures):
        print(f"Missed: {figure.name}, limit {figure.limit:g}.")
    return 1 if missed(figures) and not arguments.no_fail else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
