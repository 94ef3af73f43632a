"""
Jobs that hang, and the stacks that faulthandler writes of their ranks.

A job has three files, whose lines are drawn at random: job.py is the script, my_job.py starts the
rank and defines a function, wire.py is a library. One rank, the culprit, calls a function of the
script that the other ranks do not call, and blocks there. The others wait for it in an all-reduce.
"""

import _thread
import faulthandler
import itertools
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from neutral import JOB, SITE_PACKAGES, neutral

SCRIPT, HELPER, LIBRARY = "job.py", "my_job.py", "wire.py"
FAULTS = {
    # what the culprit does -> the function that only the culprit calls, and its last line
    "waits for a batch": ("load", "    return batches.get()"),
    "waits in a helper": ("load_by_helper", "    return fetch(batches)"),
    "looks for a file": ("find_file", "        time.sleep(0.1)"),
    "validates alone": ("validate", "    average(torch.ones(1), other)"),
    "saves alone": ("save", "    dist.barrier(group=other)"),
}
DIGITS = (2, 3, 4, 1)
"""
Number of digits of the culprit's line number. With 2, the line number may have only one digit.
"""
MAIN_FIRST = 3  # with this many digits, main is above the functions that it calls
RANK_0 = 4  # with this many digits, rank 0 is the culprit: a check draws one job of each
LIBRARIES = ("at the same line", "at other lines", "at the same number")
"""
Lines of the ranks in wire.py. "at the same number": a waiting rank's line in wire.py has the same
number as the culprit's line in job.py.
"""
HANGS_WITHIN_S = 120.0
LOOK_EVERY_S, EQUAL_LOOKS = 0.2, 3
HEAD = "Stack (most recent call first):\n"
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch.distributed"])  # so that a rank starts fast
_PARTS = {
    "average": "def average(tensor, group):\n    reduce(tensor, group)",
    "load": "def load():\n    return batches.get()",
    "load_by_helper": "def load_by_helper():\n    return fetch(batches)",
    "find_file": "def find_file():\n    while not is_there():\n        time.sleep(0.1)",
    "validate": "def validate():\n    average(torch.ones(1), other)",
    "save": "def save():\n    dist.barrier(group=other)",
    "train": "def train():\n    average(torch.ones(4), whole)",
}
_IMPORTS = "from my_job import *\n"  # one line, so that the culprit's line can have one digit
_MAIN = """\
def main():
    for step in range(2):
        if step == 1 and is_culprit:
            {away}()
        train()
"""
_HELPER = """\
import os
import queue
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from wire import reduce

dist.init_process_group(
    "gloo",
    init_method="file://" + os.path.abspath("store"),
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    timeout=timedelta(hours=1),
)
whole, other = (dist.new_group(timeout=timedelta(hours=1)) for _ in range(2))
batches = queue.Queue()
is_culprit = dist.get_rank() == int(os.environ["CULPRIT"])


def is_there():
    return os.path.exists("/home/learner/data/shard-7.bin")


"""
_FETCH = "def fetch(batches):\n    return batches.get()\n"
_REDUCE = "import torch.distributed as dist\n\n\ndef reduce(tensor, group):\n"
_REDUCE += "    dist.all_reduce(tensor, group=group)\n"


@dataclass(frozen=True)
class Plan:
    """
    The plan of one job that hangs.

    Args:
        fault: One of FAULTS.
        digits: One of DIGITS.
        library: One of LIBRARIES.
        culprit: Number of the culprit's rank.
        source: The text of job.py.
        helper: The text of my_job.py.
        libraries: Tuple with each rank's text of wire.py.
    """

    fault: str
    digits: int
    library: str
    culprit: int
    source: str
    helper: str
    libraries: tuple

    @property
    def line(self):
        """
        The number of the line of job.py that only the culprit reaches.
        """
        return line_of(self.source, self.fault)


def line_of(source, fault):
    """
    Return the number of the line of a script that only the culprit of a fault reaches.
    """
    return source.splitlines().index(FAULTS[fault][1]) + 1


def plans(num_variants):
    """
    Return the Plans of a corpus: each fault with each number of digits and each library.

    Args:
        num_variants: Number of jobs of each combination.
    """
    every = itertools.product(FAULTS, DIGITS, LIBRARIES, range(num_variants))
    return [_plan(*each) for each in every]


def few_plans():
    """
    Return a list with one Plan.
    """
    return [_plan("saves alone", 1, "at the same number", 0)]


def _plan(fault, digits, library, variant):
    rng = Random(f"{fault} {digits} {library} {variant}")
    world_size = rng.choice((3, 4))
    culprit = 0 if digits == RANK_0 else rng.randrange(world_size)
    source = _source(rng, fault, digits)
    helper = _HELPER + "#\n" * rng.randint(60, 120) + _FETCH
    lines = [rng.randint(60, 90)] * world_size
    if library != "at the same line":
        lines = rng.sample(range(60, 60 + 10 * world_size), world_size)
    if library == "at the same number":
        lines[(culprit + 1) % world_size] = max(line_of(source, fault), 5)
    libraries = tuple("#\n" * (line - 5) + _REDUCE for line in lines)
    return Plan(fault, digits, library, culprit, source, helper, libraries)


def _source(rng, fault, digits):
    """
    Return the text of job.py, with functions in a random order and random gaps between them.
    """
    names = rng.sample(list(_PARTS), len(_PARTS))
    gaps = [*(rng.randint(1, 9) for _ in names), 0]
    if digits == 1:
        names.sort(key=lambda name: name != FAULTS[fault][0])  # the culprit's function is first
        gaps[0] = 2 + gaps[0] % 3
    if digits > 2:
        # Gaps are so wide that lines of two functions differ in their first digits, too.
        gaps = [gap * 10 ** (digits - 2) for gap in gaps]
        gaps[0] += 10 ** (digits - 1)
    main = _MAIN.format(away=FAULTS[fault][0])
    texts = [*(f"{_PARTS[name]}\n\n\n" for name in names), f"{main}\n\n"]
    spaced = ["#\n" * gap + text for gap, text in zip(gaps, texts, strict=True)]
    if digits == MAIN_FIRST:
        spaced.insert(0, spaced.pop())
    return "".join([_IMPORTS, *spaced, "main()\n"])


def record(plan, folder):
    """
    Start a job, wait until it hangs, and return its record: culprit, line, and a dump of each rank.

    Args:
        plan: The Plan.
        folder: An empty folder for the job.
    """
    folder = Path(folder)
    (folder / SCRIPT).write_text(plan.source)
    (folder / HELPER).write_text(plan.helper)
    ranks = range(len(plan.libraries))
    processes = [_start(plan, folder, rank) for rank in ranks]
    try:
        dumps = {}
        for rank in sorted(ranks, key=lambda rank: rank != plan.culprit):  # hangs first
            mark = f'{SCRIPT}", line {plan.line} in' if rank == plan.culprit else "in all_reduce"
            dumps[rank] = _dump_once_it_hangs(processes[rank], folder / f"stack_{rank}.txt", mark)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
    places = {folder / f"rank-{rank}": SITE_PACKAGES for rank in ranks} | {folder: JOB}
    texts = neutral(dumps, places)
    return {
        "fault": plan.fault,
        "digits": plan.digits,
        "library": plan.library,
        "culprit": plan.culprit,
        "line": plan.line,
        "dumps": [texts[rank] for rank in ranks],
    }


def _start(plan, folder, rank):
    library = folder / f"rank-{rank}"
    library.mkdir()
    (library / LIBRARY).write_text(plan.libraries[rank])
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(plan.libraries)),
        "CULPRIT": str(plan.culprit),
        "OMP_NUM_THREADS": "1",
    }
    process = FORKED.Process(target=run_rank, args=(folder, library, variables), daemon=True)
    process.start()
    return process


def run_rank(folder, library, variables):
    """
    Run the script as a rank, and write its stack into a file over and over.

    The script runs in its own thread, so that its stack has no line of this module.

    Args:
        folder: The job's folder.
        library: The folder of its library.
        variables: Dict of the rank's environment variables.
    """
    os.chdir(folder)
    os.environ.update(variables)
    sys.path[:0] = [str(folder), str(library)]
    script = compile(Path(folder, SCRIPT).read_text(), str(folder / SCRIPT), "exec")
    with open(f"stack_{variables['RANK']}.txt", "w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
        thread = _thread.start_new_thread(exec, (script, {"__name__": "__main__"}))
        while True:
            time.sleep(LOOK_EVERY_S)
            signal.pthread_kill(thread, signal.SIGUSR1)


def _dump_once_it_hangs(process, file, mark):
    """
    Return a rank's dump, once it has a mark and has been the same in EQUAL_LOOKS looks.
    """
    looks, give_up_at = [], time.monotonic() + HANGS_WITHIN_S
    while time.monotonic() < give_up_at and process.is_alive():
        time.sleep(LOOK_EVERY_S)
        text = file.read_text() if file.exists() else ""
        looks = text.split(HEAD)[1:-1][-EQUAL_LOOKS:]  # the last one may not be whole
        if len(looks) == EQUAL_LOOKS and len(set(looks)) == 1 and mark in looks[0]:
            return HEAD + looks[0]
    raise TimeoutError(
        f"The job does not hang: expected {mark!r} in {file.name} within {HANGS_WITHIN_S:g} s (got "
        f"{looks[-1:]}). Look at what its ranks have printed."
    )
