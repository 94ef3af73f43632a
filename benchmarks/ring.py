"""
Measure our rings against torch's own all-reduce, over sizes, on 2 and on 4 ranks.

    python benchmarks/ring.py [--repeats 15] [--world-sizes 2 4] [--sizes-kib 1 ... ] [--no-fail]

On the CPU torch uses Gloo. With `--device cuda` it uses NCCL, if there is a GPU for each rank.

Every round times each way once in the same ranks, so that a slow moment slows all alike. A sample
is the time of the slowest rank, after a barrier: the mean of 4 calls in a row, or of 10 for short
tensors. A single call would mostly measure luck: on which core the barrier has left each thread.
Limit: the pipelined ring takes at most 1.10 x Gloo's time at every power of two, by the median of
the ratios within rounds. Gloo against itself differed by 1.45 in one of 15 rounds. So these two are
timed in 3 times as many rounds as the others, and up to 8 MiB in 10 times as many.

The rounds are distributed over several starts of the ranks: which cores and which memory a process
gets is luck that lasts as long as the process.

The fastest samples are shown as well. On a busy machine medians depend on other programs as much as
on the ways, and other programs disturb the fastest sample least.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from figures import (
    RATIO,
    Plan,
    figures_document,
    make_figures,
    missed,
    show_figures,
    write_document,
)
from machine import describe_machine, machine_slug
from rank_processes import run_starts, settle

from ddp_lessons.collectives import log_rounds, naive
from ddp_lessons.process_group import rank_device
from ddp_lessons.ring import pipelined, textbook

RESULTS = Path(__file__).with_name("results")
WAYS = {
    "torch": dist.all_reduce,
    "pipelined": pipelined.all_reduce,
    "textbook": textbook.all_reduce,
    "log rounds": log_rounds.all_reduce,
    "hub": naive.all_reduce,
}
SIZES_KIB = tuple(1 << power for power in range(17))  # 1 KiB to 64 MiB
LIMIT = 1.10
FEWEST_REPEATS = 15
NUM_STARTS = 8
_SHORT_KIB = 64
_CALLS, _CALLS_OF_SHORT = 4, 10
_QUICK_KIB = 8192
_LIMITED = ("torch", "pipelined")
_MORE_ROUNDS, _MORE_ROUNDS_OF_QUICK = 3, 10


def measure(world_size, sizes_kib, num_rounds, device="cpu"):
    """
    Start ranks, time every way at every size, and return the slowest rank's times.

    Args:
        world_size: Number of ranks.
        sizes_kib: Sizes of the tensor, in KiB.
        num_rounds: Number of rounds that time every way. `_LIMITED` ways are timed in more rounds.
        device: "cpu" or "cuda".

    Returns:
        dict: {(size in KiB, way): [milliseconds in each round]}.
    """
    samples = {}
    job = (world_size, _measure_on, sizes_kib)
    for ranks in run_starts(NUM_STARTS, num_rounds, *job, device=device):
        for key in ranks[0]:
            slowest = [max(times) for times in zip(*(of[key] for of in ranks), strict=True)]
            samples.setdefault(key, []).extend(slowest)
    return samples


def _measure_on(rank, sizes_kib, num_rounds):
    samples = {}
    for size_kib in sizes_kib:
        # float32, so 256 numbers a KiB
        tensor = torch.zeros(size_kib << 8, device=rank_device())
        num_calls = _CALLS_OF_SHORT if size_kib <= _SHORT_KIB else _CALLS
        more = _MORE_ROUNDS_OF_QUICK if size_kib <= _QUICK_KIB else _MORE_ROUNDS
        for round_number in range(-1, num_rounds * more):  # the first round warms up
            names = _LIMITED if round_number % more else WAYS
            for way in _in_turns(list(names), round_number):
                elapsed_ms = _time(WAYS[way], tensor, num_calls)
                if round_number >= 0:
                    samples.setdefault((size_kib, way), []).append(elapsed_ms)
    return samples


def _in_turns(names, round_number):
    """
    Return names, reversed in even rounds, so that no way always follows the same other way.
    """
    return names if round_number % 2 else names[::-1]


def _time(all_reduce, tensor, num_calls):
    dist.barrier()
    settle(tensor.device)  # NCCL's barrier returns before the GPU has done it
    began_s = time.perf_counter()
    for _ in range(num_calls):
        all_reduce(tensor)
    settle(tensor.device)
    return (time.perf_counter() - began_s) / num_calls * 1e3


def make_plans(world_sizes, sizes_kib, backend="Gloo", has_limits=True):
    """
    Return the Plans of the table: every way of ours against torch's own, at every size.

    Args:
        world_sizes: Numbers of ranks.
        sizes_kib: Sizes of the tensor, in KiB.
        backend: Name of the backend that torch uses: "Gloo" or "NCCL".
        has_limits: Whether the limits apply. They are for Gloo on a CPU.
    """
    plans = []
    for world_size in world_sizes:
        for size_kib in sizes_kib:
            for way in list(WAYS)[1:]:
                plans.append(
                    Plan(
                        f"{way}, {size_name(size_kib)}, {world_size} ranks",
                        "ms",
                        (world_size, size_kib, way),
                        f"{backend}'s all_reduce",
                        (world_size, size_kib, "torch"),
                        LIMIT if has_limits and way == "pipelined" else None,
                        RATIO,
                        is_paired=way == "pipelined",  # as many rounds as the reference
                    )
                )
            plans.append(
                Plan(
                    f"pipelined, {size_name(size_kib)}, {world_size} ranks, fastest",
                    "ms",
                    (world_size, size_kib, "pipelined", "fastest"),
                    f"{backend}'s fastest",
                    (world_size, size_kib, "torch", "fastest"),
                )
            )
    return plans


def fastest(samples):
    """
    Return the fastest of each list of samples, under its key with "fastest" added.
    """
    return {(*key, "fastest"): [min(times_ms)] for key, times_ms in samples.items()}


def size_name(size_kib):
    """
    Return a size as text: in MiB if it is a whole number of MiB, else in KiB.
    """
    return f"{size_kib >> 10} MiB" if size_kib % 1024 == 0 else f"{size_kib} KiB"


def parse_arguments(argv):
    """
    Return the command line's arguments.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument(
        "--repeats", type=int, default=FEWEST_REPEATS, metavar="N", help="rounds (default: 15)"
    )
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 4], metavar="W")
    parser.add_argument("--sizes-kib", type=int, nargs="+", default=list(SIZES_KIB), metavar="K")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 if a limit is missed")
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="where to write (default: benchmarks/results/, if all was measured 15 times or more)",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    if min(arguments.repeats, *arguments.world_sizes, *arguments.sizes_kib) < 1:
        parser.error("every number must be a whole number from 1")
    return arguments


def main(argv):
    """
    Measure, print the results, and write them to a file.

    Returns:
        int: Exit status: 1 if a limit is missed.
    """
    arguments = parse_arguments(argv)
    machine = describe_machine()
    samples = {}
    for world_size in arguments.world_sizes:
        began_s = time.monotonic()
        measured = measure(world_size, arguments.sizes_kib, arguments.repeats, arguments.device)
        samples |= {(world_size, *key): times_ms for key, times_ms in measured.items()}
        print(f"{world_size} ranks: {time.monotonic() - began_s:.0f} s", flush=True)
    samples |= fastest(samples)
    is_on_cpu = arguments.device == "cpu"
    is_nccl = not is_on_cpu and max(arguments.world_sizes) <= torch.cuda.device_count()
    backend = "NCCL" if is_nccl else "Gloo"
    plans = make_plans(arguments.world_sizes, arguments.sizes_kib, backend, is_on_cpu)
    figures = make_figures(plans, samples)
    show_figures(figures)
    whole = parse_arguments([])
    is_whole = (
        arguments.repeats >= whole.repeats
        and arguments.sizes_kib == whole.sizes_kib
        and arguments.world_sizes == whole.world_sizes
        and is_on_cpu
    )
    file = arguments.json or (RESULTS / f"ring-{machine_slug(machine)}.json" if is_whole else None)
    if file is not None:
        command = " ".join(["python benchmarks/ring.py", *_without_file(argv)])
        write_document(file, figures_document(command, machine, figures))
        print(f"written: {file.name}")
    return 1 if missed(figures) and not arguments.no_fail else 0


def _without_file(argv):
    """
    Return the arguments without `--json` and its file, which is a path of this machine.
    """
    if "--json" not in argv:
        return argv
    place = argv.index("--json")
    return argv[:place] + argv[place + 2 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
