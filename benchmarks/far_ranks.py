"""
Measure four ranks on 1, 2 and 4 hosts by SSH: start, a cell, the prompt after each fault, stop.

    python benchmarks/far_ranks.py [--hosts 1 2 4] [--repeats 3] [--json FILE]

scripts/hosts.sh makes virtual hosts with links at full speed; it needs root. The same rounds also
measure four ranks "at home": on this machine, without SSH. All hosts share this machine's cores. A
start may take as long as three starts at home, since each host imports torch, and one login.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from figures import (
    RATIO,
    Plan,
    figures_document,
    make_figures,
    missed,
    show_figures,
    write_document,
)
from kernel import BenchmarkFailed, running_kernel
from machine import describe_machine, machine_slug
from recovery import FAULTS, measure_fault
from starting import NUM_RANKS, all_reduce_cell

from ddp_lessons.many_machines import TestBed, why_no_hosts

RESULTS = Path(__file__).with_name("results")
HOSTS = (1, 2, 4)
NUM_CELLS = 50
MOST_STARTS = 3
MOST_STOP_S = 3.0
_AT_HOME = 0
_CELL = "%%px\nx = 1"
VANISHING = (
    ("vanish", "prompt after a host vanishes", 10.0),
    ("replace", "the next cell, which replaces its ranks", None),
    ("stop without one", "stop after that", 10.0),
)
_WAIT = "%%px\nimport time\ntime.sleep(3)\ndist.all_reduce(total)"
_VANISH_AFTER_S = 1.0
_START = """\
from ddp_lessons import start_ranks
ranks = start_ranks({num_ranks}, device="cpu", launcher="{launcher}")
"""
_CONFIGURATION = """\
c = get_config()
c.SSHLauncher.ssh_cmd = ["ssh", "-F", "{folder}/ssh_config"]
c.SSHLauncher.scp_cmd = ["scp", "-F", "{folder}/ssh_config"]
c.SSHLauncher.remote_python = "{python}"
c.SSHEngineSetLauncher.engines = {engines}
"""


def measure(num_hosts):
    """
    Measure four ranks on some number of hosts, in a fresh kernel.

    Args:
        num_hosts: Number of hosts that share the ranks evenly; 0: ranks on this machine, no SSH.

    Returns:
        dict: {name: seconds}. Names are "start", "cell", "stop", that of each fault, with hosts
        "login", and with more than one host those of `VANISHING`.
    """
    if num_hosts == _AT_HOME:
        with tempfile.TemporaryDirectory() as folder, running_kernel(folder) as kernel:
            return _measure(kernel, "auto")
    with (
        TestBed(num_hosts) as bed,
        tempfile.TemporaryDirectory() as folder,
        running_kernel(folder) as kernel,
    ):
        engines = {f"node{n + 1}": NUM_RANKS // num_hosts for n in range(num_hosts)}
        profile = Path(kernel.value("get_ipython().profile_dir.location"))
        (profile / "ipcluster_config.py").write_text(
            _CONFIGURATION.format(folder=bed.folder, python=sys.executable, engines=engines)
        )
        login_s = _login_s(bed.folder)
        return {"login": login_s} | _measure(kernel, "ssh", bed if num_hosts > 1 else None)


def _measure(kernel, launcher, bed=None):
    start = _START.format(num_ranks=NUM_RANKS, launcher=launcher)
    seconds = {"start": kernel.seconds_of(start, all_reduce_cell())}
    seconds["cell"] = median(_round_trip_s(kernel) for _ in range(NUM_CELLS))
    for fault in FAULTS:
        seconds[fault.name] = measure_fault(kernel, fault)[f"{fault.name}_prompt_s"]
    seconds["stop"] = kernel.seconds_of("ranks.stop()")
    if bed is not None:
        kernel.run_well(start)
        seconds |= _measure_vanishing(kernel, bed)
        seconds["stop without one"] = kernel.seconds_of("ranks.stop()")
    return seconds


def _login_s(folder):
    began_s = time.monotonic()
    subprocess.run(["ssh", "-F", f"{folder}/ssh_config", "node1", "true"], check=True)
    return time.monotonic() - began_s


def _measure_vanishing(kernel, bed):
    """
    Switch a host off during a cell. Return the seconds to the prompt, and those of the next cell.
    """
    kernel.run_well(all_reduce_cell())
    moments_s = []

    def switch_off():
        moments_s.append(time.monotonic())
        bed.off(2)

    timer = threading.Timer(_VANISH_AFTER_S, switch_off)
    timer.start()
    result = kernel.run(_WAIT)
    timer.join()
    if result.status != "error":
        raise BenchmarkFailed(f"A cell whose host vanished ended as {result.status}.")
    next_s = kernel.run_well(all_reduce_cell()).prompt_s - result.prompt_s
    return {"vanish": result.prompt_s - moments_s[0], "replace": next_s}


def _round_trip_s(kernel):
    began_s = time.monotonic()
    return kernel.run_well(_CELL).prompt_s - began_s


def parse_arguments(argv):
    """
    Return the command line's arguments.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=HOSTS, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write")
    parser.add_argument("--no-fail", action="store_true", help="only report")
    arguments = parser.parse_args(argv)
    if any(num not in HOSTS for num in arguments.hosts):
        parser.error(f"--hosts: expected some of {HOSTS}, which share {NUM_RANKS} ranks evenly")
    if reason := why_no_hosts():
        parser.error(reason)
    return arguments


def main(argv):
    """
    Measure, print the results, and write them to a file.

    Returns:
        int: Exit status: 1 if a limit is missed.
    """
    arguments = parse_arguments(argv)
    machine, samples = describe_machine(), defaultdict(list)
    places = (_AT_HOME, *arguments.hosts)
    for number in range(arguments.repeats):
        first = number % len(places)
        for num_hosts in places[first:] + places[:first]:
            for what, seconds in measure(num_hosts).items():
                samples[what, num_hosts].append(seconds)
    for num in arguments.hosts:
        at_home_s, login_s = samples["start", _AT_HOME], samples["login", num]
        samples["allowed", num] = [
            MOST_STARTS * home_s + one_s for home_s, one_s in zip(at_home_s, login_s, strict=True)
        ]
    told = {"start": "start, to the first all-reduce", "cell": "a cell"}
    told |= {fault.name: f"prompt after: {fault.name}" for fault in FAULTS}
    plans = [
        Plan(f"{num} host{'s' * (num > 1)}: {words}", "s", (what, num), "at home", (what, 0))
        for num in arguments.hosts
        for what, words in told.items()
    ]
    plans += [
        Plan(f"{num} hosts: {words}", "s", (what, num), limit=limit)
        for num in arguments.hosts
        for what, words, limit in VANISHING
        if num > 1
    ]
    plans += [
        Plan(
            f"{num} host{'s' * (num > 1)}: start", "s", ("start", num),
            f"{MOST_STARTS} starts at home and a login", ("allowed", num), 1.0, RATIO,
        )
        for num in arguments.hosts
    ]  # fmt: skip
    plans += [
        Plan(f"{num} host{'s' * (num > 1)}: stop", "s", ("stop", num), limit=MOST_STOP_S)
        for num in arguments.hosts
    ]
    figures = make_figures(plans, samples)
    show_figures(figures)
    path = arguments.json
    if path is None and tuple(arguments.hosts) == HOSTS:
        path = RESULTS / f"far-ranks-{machine_slug(machine)}.json"
    if path is not None:
        sizes = " ".join(map(str, arguments.hosts))
        command = f"python benchmarks/far_ranks.py --hosts {sizes} --repeats {arguments.repeats}"
        write_document(path, figures_document(command, machine, figures))
    return int(bool(missed(figures)) and not arguments.no_fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
