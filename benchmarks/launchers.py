"""
Measure the same script under each launcher: seconds to the first all-reduce, and of a training
step; and from a rank's failure to the next all-reduce, in a notebook and with torchrun's restarts.

    python benchmarks/launchers.py [--repeats 5] [--json FILE] [--no-fail]

The script runs on two ranks on the CPU. Each round starts every launcher once, in an order that
rotates, so that a slow minute slows all alike. A ratio is the median of the ratios within rounds.
Launchers that are not installed are left out; `eval "$(scripts/slurm.sh start)"` starts a temporary
Slurm. There is no limit: the figures show what each launcher costs.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from figures import Plan, figures_document, make_figures, show_figures, write_document
from machine import describe_machine
from rank_processes import in_turns

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.errors import CellFailed
from ddp_lessons.jobs import run_job
from ddp_lessons.launch import command_of, is_here
from ddp_lessons.ranks.kernel.cells import run_cell

NOTEBOOK = "notebook ranks"
SCRIPT = Path(__file__).with_name("launched_script.py")
NUM_RANKS = 2
_LIMIT_S = 120


def run_in_notebook(file):
    """
    Start ranks as a notebook does, run the steps in a cell, and stop the ranks.
    """
    os.environ.update(BEGAN=str(time.time()), LAUNCHED=str(file))
    ranks = start_ranks(NUM_RANKS, device="cpu")
    source = f"import sys\nsys.path.insert(0, {str(SCRIPT.parent)!r})\n"
    run_cell(ranks, f"{source}from launched_script import steps\nsteps()")
    stop_ranks()


def run_by(launcher, file):
    """
    Start the script with a launcher, and wait for its end.
    """
    command, needed = command_of(launcher, NUM_RANKS, str(SCRIPT))
    told = {"BEGAN": time.time(), "LAUNCHED": file, "CUDA_VISIBLE_DEVICES": ""}
    job = run_job(command, timeout_s=_LIMIT_S, env={**needed, **told})
    if job.returncode:
        sys.exit(f"{launcher} ended with {job.returncode}:\n{job.stderr}")


def fail_in_notebook(file):
    """
    End the process of a rank in a cell, and do an all-reduce in the next cell.
    """
    ranks = start_ranks(NUM_RANKS, device="cpu")
    prepare = (  # both cells begin with it, as the new rank needs it, too
        f"import os, sys\nsys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        f"os.environ.update(FAILED={f'{file}-failed'!r}, LAUNCHED={str(file)!r})\n"
        "from launched_script import come_back, fail\n"
    )
    with contextlib.suppress(CellFailed):
        run_cell(ranks, f"{prepare}fail()")
    run_cell(ranks, f"{prepare}come_back()")
    stop_ranks()


def fail_by_torchrun(file):
    """
    End the process of a rank under torchrun, which then starts all ranks again.
    """
    command = f"torchrun --standalone --nproc-per-node {NUM_RANKS} --max-restarts 1 {SCRIPT}"
    # Each restart needs a new store. With the old one most restarts fail: see lesson 09.
    told = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    told |= {"FAILED": f"{file}-failed", "LAUNCHED": file, "CUDA_VISIBLE_DEVICES": ""}
    job = run_job(command, timeout_s=_LIMIT_S, env=told)
    if job.returncode:
        sys.exit(f"torchrun ended with {job.returncode}:\n{job.stderr}")


FAILURES = {NOTEBOOK: fail_in_notebook, "torchrun": fail_by_torchrun}


def measure(names, num_repeats):
    """
    Run all rounds. Return {name of a sample, such as "start_s torchrun": [seconds of each round]}.
    """
    samples: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num_repeats):
            for name in in_turns(names, number):
                file = Path(folder, f"{name}-{number}.json")
                if name == NOTEBOOK:
                    run_in_notebook(file)
                else:
                    run_by(name, file)
                note(name, file, samples)
            for name, fail in in_turns([*FAILURES.items()], number):
                fail(file := Path(folder, f"{name}-fails-{number}.json"))
                note(name, file, samples)
    return samples


def note(name, file, samples):
    """
    Add the times that a run has written to the samples.
    """
    for part, seconds in json.loads(file.read_text()).items():
        samples.setdefault(f"{part} {name}", []).append(seconds)


def main(argv):
    """
    Measure every launcher, print the table, and write it to a file if asked to.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--no-fail", action="store_true", help="as for the others: there is no limit"
    )
    options = parser.parse_args(argv)
    launchers = ("torchrun", "spawn", "mpiexec", "srun")
    names = [NOTEBOOK, *(name for name in launchers if is_here(name, os.environ))]
    samples = measure(names, options.repeats)
    plans = [
        Plan(f"{what}: {name}", "s" if part == "start_s" else "ms", f"{part} {name}",
             NOTEBOOK, f"{part} {NOTEBOOK}", is_paired=True)
        for part, what in (("start_s", "first all-reduce"), ("step_s", "a training step"))
        for name in names
    ]  # fmt: skip
    plans += [
        Plan(f"from a failure to the next step: {name}", "s", f"back_s {name}",
             NOTEBOOK, f"back_s {NOTEBOOK}", is_paired=True)
        for name in FAILURES
    ]  # fmt: skip
    in_ms = {
        key: [1000 * one for one in values] if key.startswith("step_s") else values
        for key, values in samples.items()
    }
    figures = make_figures(plans, in_ms)
    show_figures(figures)
    if options.json:
        command = f"benchmarks/launchers.py --repeats {options.repeats}"
        write_document(options.json, figures_document(command, describe_machine(), figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
