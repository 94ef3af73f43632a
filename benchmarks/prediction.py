"""
Measure how well a step under DDP is predicted, for three models on 1 to 4 ranks.

    python benchmarks/prediction.py [--repeats 15] [--world-sizes 1 2 3 4] [--no-fail]

A step is predicted from measurements of its parts: the compute of all ranks at once, which send
nothing (`no_sync`), and a link that is fitted to bare all-reduces of four sizes, none of which is a
model's. Communication is added to compute, as if nothing overlapped: ranks share cores here, and a
message that is sent during compute takes cores away from it.

Every round times compute, all-reduces and steps four times, in turns, so that a slow moment slows
all alike. Gradients are views of DDP's buckets, so that none is copied. A sample is the time of the
slowest rank, and medians are compared. Limit: the median of the errors, over all models and numbers
of ranks, is at most 15 %.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from figures import (
    VALUE,
    Plan,
    figures_document,
    make_figures,
    missed,
    show_figures,
    write_document,
)
from machine import describe_machine, machine_slug
from rank_processes import in_turns, run_ranks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.costs import Link
from ddp_lessons.process_group import rank_device
from ddp_lessons.speed import error_share, fit_all_reduce, of_slowest, predict_step_s, step_times_s
from ddp_lessons.workloads import DIGITS_WIDTHS, digits_model, load_digits

RESULTS = Path(__file__).with_name("results")
WORLD_SIZES = (1, 2, 3, 4)
BATCH_SIZE = 256
SIZES_BYTES = tuple(48 << power for power in (4, 10, 14, 17))  # 768 B to 6 MiB
LIMIT_PERCENT = 15.0
FEWEST_REPEATS = 15
_NUM_WARM_UP, _MORE_ROUNDS = 3, 4
_NO_LINK = Link(0.0, 1.0)  # one rank sends nothing


def measure(world_size, num_rounds):
    """
    Start ranks, time compute, all-reduces and steps, and return the slowest rank's times.

    Returns:
        tuple: {("compute" or "step", model) or ("all-reduce", bytes): [seconds]}, and {model: bytes
        of its gradients}.
    """
    ranks = run_ranks(world_size, _measure_on, num_rounds)
    samples = {key: of_slowest([times[key] for times, _ in ranks]) for key in ranks[0][0]}
    return samples, ranks[0][1]


def _measure_on(rank, num_rounds):
    digits = load_digits().to(rank_device())
    images, labels = digits.train_images[:BATCH_SIZE], digits.train_labels[:BATCH_SIZE]
    ways, gradient_bytes = {}, {}
    for name in DIGITS_WIDTHS:
        model = DistributedDataParallel(
            digits_model(seed=0, size=name).to(rank_device()), gradient_as_bucket_view=True
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        ways["compute", name] = partial(_alone, model, optimizer, images, labels)
        ways["step", name] = partial(_step, model, optimizer, images, labels)
        gradient_bytes[name] = sum(p.nbytes for p in model.parameters())
    for size in SIZES_BYTES:
        ways["all-reduce", size] = partial(dist.all_reduce, torch.zeros(size // 4))
    samples = {}
    for round_number in range(-_NUM_WARM_UP, num_rounds * _MORE_ROUNDS):
        for key in in_turns(list(ways), round_number % len(ways)):
            times_s = step_times_s(ways[key], 1)
            if round_number >= 0:
                samples.setdefault(key, []).extend(times_s)
    return samples, gradient_bytes


def _alone(model, optimizer, images, labels):
    with model.no_sync():
        _step(model, optimizer, images, labels)


def _step(model, optimizer, images, labels):
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()


def predictions(world_size, samples, gradient_bytes):
    """
    Return {model: predicted seconds of a step}.
    """
    link = None
    if world_size > 1:
        times = [(size, median(samples["all-reduce", size])) for size in SIZES_BYTES]
        link = fit_all_reduce(times, world_size).link
    return {
        name: predict_step_s(
            world_size,
            0.0,
            [median(samples["compute", name])],
            [num_bytes if world_size > 1 else 0],
            link or _NO_LINK,
        )
        for name, num_bytes in gradient_bytes.items()
    }


def make_plans(world_sizes):
    """
    Return the Plans of the table: each model on each number of ranks, and the median error of all.
    """
    plans = [
        Plan(
            f"foretold, {name} model, {world_size} {'rank' if world_size == 1 else 'ranks'}",
            "ms",
            ("foretold", world_size, name),
            "a step under DDP",
            ("step", world_size, name),
        )
        for world_size in world_sizes
        for name in DIGITS_WIDTHS
    ]
    return [
        *plans,
        Plan("error, median of all", "%", "errors", limit=LIMIT_PERCENT, limit_on=VALUE),
    ]


def parse_arguments(argv):
    """
    Return the command line's arguments.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument(
        "--repeats", type=int, default=FEWEST_REPEATS, metavar="N", help="rounds (default: 15)"
    )
    parser.add_argument(
        "--world-sizes", type=int, nargs="+", default=list(WORLD_SIZES), metavar="W"
    )
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 if a limit is missed")
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="where to write (default: benchmarks/results/, if all was measured 15 times or more)",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    if min(arguments.repeats, *arguments.world_sizes) < 1:
        parser.error("every number must be a whole number from 1")
    return arguments


def main(argv):
    """
    Measure, print the results, and write them to a file.

    Returns:
        int: Exit status: 1 if the limit is missed.
    """
    arguments = parse_arguments(argv)
    machine = describe_machine()
    if machine["load"] > machine["num_cores"] / 2:
        print(f"This machine is busy (load {machine['load']}): do not trust these times.")
    samples = {"errors": []}
    for world_size in arguments.world_sizes:
        measured, gradient_bytes = measure(world_size, arguments.repeats)
        for name, foretold_s in predictions(world_size, measured, gradient_bytes).items():
            steps_s = measured["step", name]
            samples["foretold", world_size, name] = [1e3 * foretold_s]
            samples["step", world_size, name] = [1e3 * step_s for step_s in steps_s]
            samples["errors"].append(100 * error_share(foretold_s, median(steps_s)))
    figures = make_figures(make_plans(arguments.world_sizes), samples)
    show_figures(figures)
    is_whole = arguments.repeats >= FEWEST_REPEATS and arguments.world_sizes == list(WORLD_SIZES)
    slug = machine_slug(machine)
    file = arguments.json or (RESULTS / f"prediction-{slug}.json" if is_whole else None)
    if file is not None:
        command = f"python benchmarks/prediction.py --repeats {arguments.repeats}"
        write_document(file, figures_document(command, machine, figures))
        print(f"written: {file.name}")
    return 1 if missed(figures) and not arguments.no_fail else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
