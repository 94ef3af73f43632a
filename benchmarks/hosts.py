"""
Measure a batch by each remedy of lesson 17, on two hosts, over links of several rates.

    python benchmarks/hosts.py [--rates 10mbit 100mbit 1gbit none] [--repeats 3] [--json FILE]

scripts/hosts.sh makes the two virtual hosts, with 2 ranks each; it needs root. Compute is 40 ms of
sleep, the gradient has 480,000 bytes. For each rate, latency and bandwidth are fitted to
all-reduces of other sizes: between the leaders of both hosts, and within one host. From these the
time of a batch is predicted for each way, and compared with the measured time. The prediction lacks
the time in which half precision and top-k pack the gradient.
"""

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from machine import describe_machine
from rich.console import Console
from rich.table import Table

from ddp_lessons.costs import Link
from ddp_lessons.many_machines import (
    WAYS,
    Plan,
    Road,
    TestBed,
    even_layout,
    foretold_s,
    measured_s,
    split_hosts,
    why_no_hosts,
)

UNSHAPED = "none"
RATES = ("10mbit", "100mbit", "1gbit", UNSHAPED)
ONE_HOST = "one host"
NUM_BYTES, COMPUTE_S = 480_000, 0.04
SIZES = (120_000, 240_000, 960_000)  # above the 64 kB that a shaped link lets through at once
LARGE = (960_000, 3_840_000, 15_360_000)  # fewer bytes take no longer than a wake-up
_MARK = "measured: "
_WITHIN_S = 540


def fitted(group, sizes):
    """
    Fit a link to the times of all-reduces within a group. `sizes` are in bytes.
    """
    from ddp_lessons.ring import textbook
    from ddp_lessons.speed import all_reduce_times_s, fit_all_reduce

    def all_reduce(tensor, group=None):
        textbook.all_reduce(tensor, group=group)

    times_s = all_reduce_times_s(sizes, most=8, all_reduce=all_reduce, group=group)
    return fit_all_reduce(times_s.items(), group.size()).link


def worker(rate, num_repeats):
    """
    Measure on one rank. Rank 0 prints the predicted and the measured times.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    hosts = split_hosts(even_layout(2, 2))
    links = [None, None]
    if hosts.leaders is not None:
        links[0] = asdict(fitted(hosts.leaders, LARGE if rate == UNSHAPED else SIZES))
    dist.barrier()
    links[1] = asdict(fitted(hosts.local, LARGE))
    dist.broadcast_object_list(links, src=0)
    across, within = (Link(**one) for one in links)
    plan, road = Plan(2, 2, NUM_BYTES, COMPUTE_S, across, within), Road(hosts)
    found = {ONE_HOST: [foretold_s("flat", replace(plan, num_hosts=1)), one_host_s(road)]}
    for name in WAYS:
        times_s = [measured_s(name, road, plan) for _ in range(num_repeats)]
        found[name] = [foretold_s(name, plan), median(times_s)]
    if dist.get_rank() == 0:
        print(_MARK + json.dumps({"links": links, "ways": found}), flush=True)
    dist.destroy_process_group()


def one_host_s(road):
    """
    Return the seconds of a batch on one host alone. The other host does the same meanwhile.
    """
    import time

    import torch
    import torch.distributed as dist

    from ddp_lessons.ring import steps
    from ddp_lessons.speed import least_step_s

    gradient = torch.zeros(NUM_BYTES // 4)

    def batch():
        time.sleep(COMPUTE_S)
        steps.all_reduce(gradient, dist.ReduceOp.SUM, road.local)

    return least_step_s(batch)


def measure(rate, num_repeats):
    """
    Make two hosts with a link of a rate, and return the measurements on them.
    """
    command = ["python", "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "node1:29600"]
    command += [str(Path(__file__).resolve()), "--worker", "--rates", rate]
    command += ["--repeats", str(num_repeats)]
    with TestBed(2, rate=None if rate == UNSHAPED else rate) as bed:
        first, second = (bed.start(number, command) for number in (1, 2))
        with first, second:
            first.wait_for(_MARK, _WITHIN_S)
            line = next(one for one in first.stdout.splitlines() if one.startswith(_MARK))
    return json.loads(line.removeprefix(_MARK))


def show(rate, measured):
    """
    Print the table of one rate.
    """
    across = measured["links"][0]
    told = f"{1e3 * across['latency_s']:.2f} ms, {across['bandwidth_bytes_per_s'] / 1e6:.1f} MB/s"
    table = Table(title=f"link: {rate} (fitted: {told})", box=None, padding=(0, 2, 0, 0))
    for heading in ("way", "foretold, ms", "measured, ms", "of it", "batches a second"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for name, (foretold, taken) in measured["ways"].items():
        ranks = 2 if name == ONE_HOST else 4
        cells = (1e3 * foretold, 1e3 * taken), foretold / taken, ranks / taken
        table.add_row(name, *(f"{ms:.1f}" for ms in cells[0]), f"{cells[1]:.2f}", f"{cells[2]:.0f}")
    Console(highlight=False, width=100).print(table)


def main(argv):
    """
    Measure each rate, print the tables, and write the results to a file if asked to.

    Returns:
        int: Exit status: 0, as there is no limit.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--rates", nargs="+", default=list(RATES), help="of tc, or none")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write")
    parser.add_argument("--no-fail", action="store_true", help="there is no limit to miss")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        worker(arguments.rates[0], arguments.repeats)
        return 0
    reason = why_no_hosts()
    if reason:
        print(f"Nothing measured: {reason}.")
        return 0
    machine = describe_machine()
    if machine["load"] > machine["num_cores"] / 2:
        print(f"This machine is busy (load {machine['load']}): do not trust these times.")
    found = {}
    for rate in arguments.rates:
        found[rate] = measure(rate, arguments.repeats)
        show(rate, found[rate])
    if arguments.json:
        document = {"machine": machine, "rates": found}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
