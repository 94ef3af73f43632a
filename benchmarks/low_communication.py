"""
Measure a round of DiLoCo over a slow link against as many steps under DDP, on 2 and on 4 ranks.

    python benchmarks/low_communication.py [--repeats 9] [--world-sizes 2 4] [--no-fail]

The slow link is simulated: each message of a ring waits for as long as a `costs.Link` of 1 ms and
20 MB/s says, like one between two machines on an ordinary network. DDP sends its buckets over the
link in each step, through a communication hook. DiLoCo sends its weights over it once in a round of
14 steps. Model, samples and optimizer are the same, and each round measures both. Limit: DiLoCo
takes at most half of DDP's seconds. The loss of both after all rounds is also shown, without a
limit.
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
from rank_processes import in_turns, run_ranks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp_lessons.asynchronous import DiLoCo
from ddp_lessons.costs import Link
from ddp_lessons.speed import of_slowest, slow_all_reduce
from ddp_lessons.workloads import digits_batch, digits_model, load_digits

RESULTS = Path(__file__).with_name("results")
WORLD_SIZES = (2, 4)
LINK = Link(latency_s=1e-3, bandwidth_bytes_per_s=20e6)
EVERY, BATCH_SIZE, LEARNING_RATE = 14, 64, 0.003
LIMIT = 0.5
FEWEST_REPEATS = 9
_NUM_WARM_UP = 1


def measure(world_size, num_rounds):
    """
    Start ranks and measure. Return {("s" or "loss", way): samples}.

    Samples of "s" are the seconds of the slowest rank in each round; "loss" is the loss at the end.
    """
    ranks = run_ranks(world_size, _measure_on, world_size, num_rounds)
    samples = {("s", way): of_slowest([times[way] for times, _ in ranks]) for way in ranks[0][0]}
    return samples | {("loss", way): [loss] for way, loss in ranks[0][1].items()}


def _measure_on(rank, world_size, num_rounds):
    digits, models = load_digits(), {}
    models["DDP"] = DistributedDataParallel(digits_model(seed=0, size="medium"))
    models["DDP"].register_comm_hook(slow_all_reduce(LINK), _mean_over_link)
    models["DiLoCo"] = digits_model(seed=0, size="medium")
    optimizers = {
        way: torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        for way, model in models.items()
    }
    meeting = DiLoCo(
        models["DiLoCo"], optimizers["DiLoCo"], EVERY, all_reduce=slow_all_reduce(LINK)
    )
    steps = {"DDP": lambda: _step(optimizers["DDP"]), "DiLoCo": meeting.step}
    times_s = {way: [] for way in models}
    for number in range(_NUM_WARM_UP + num_rounds):
        for way in in_turns(list(models), number):
            dist.barrier()
            began_s = time.perf_counter()
            for step in range(number * EVERY, (number + 1) * EVERY):
                images, labels = digits_batch(digits, BATCH_SIZE, rank=rank, step=step)
                cross_entropy(models[way](images), labels).backward()
                steps[way]()
            if number >= _NUM_WARM_UP:
                times_s[way].append(time.perf_counter() - began_s)
    whole = digits.train_images, digits.train_labels
    with torch.no_grad():
        losses = {way: cross_entropy(m(whole[0]), whole[1]).item() for way, m in models.items()}
    return times_s, losses


def _step(optimizer):
    optimizer.step()
    optimizer.zero_grad()


def _mean_over_link(all_reduce, bucket):
    flat = bucket.buffer()
    all_reduce(flat)
    done = torch.futures.Future()
    done.set_result(flat / dist.get_world_size())
    return done


def make_plans(world_sizes):
    """
    Return the Plans of the table: seconds and loss of DiLoCo against DDP's, by number of ranks.
    """
    return [
        Plan(
            f"{told}, DiLoCo, {world_size} ranks",
            unit,
            (world_size, what, "DiLoCo"),
            "the same under DDP",
            (world_size, what, "DDP"),
            limit=limit,
            limit_on=RATIO,
            is_paired=what == "s",
        )
        for world_size in world_sizes
        for told, unit, what, limit in (
            (f"{EVERY} steps", "s", "s", LIMIT),
            ("loss that is left", "", "loss", None),
        )
    ]


def parse_arguments(argv):
    """
    Return the command line's arguments.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument(
        "--repeats", type=int, default=FEWEST_REPEATS, metavar="N", help="rounds (default: 9)"
    )
    parser.add_argument(
        "--world-sizes", type=int, nargs="+", default=list(WORLD_SIZES), metavar="W"
    )
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 if a limit is missed")
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="where to write (default: benchmarks/results/, if all was measured 9 times or more)",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1 or min(arguments.world_sizes) < 2:
        parser.error("repeats must be a whole number from 1, world sizes from 2")
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
    samples = {}
    for world_size in arguments.world_sizes:
        for key, values in measure(world_size, arguments.repeats).items():
            samples[(world_size, *key)] = values
    figures = make_figures(make_plans(arguments.world_sizes), samples)
    show_figures(figures)
    is_whole = arguments.repeats >= FEWEST_REPEATS and arguments.world_sizes == list(WORLD_SIZES)
    slug = machine_slug(machine)
    file = arguments.json or (RESULTS / f"low-communication-{slug}.json" if is_whole else None)
    if file is not None:
        command = f"python benchmarks/low_communication.py --repeats {arguments.repeats}"
        write_document(file, figures_document(command, machine, figures))
        print(f"written: {file.name}")
    return 1 if missed(figures) and not arguments.no_fail else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
