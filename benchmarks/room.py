"""
Measure a room of learners on one server: they run lesson 02 at human pace, each with four ranks.

    python benchmarks/room.py [--learners 1 5 10 20 30] [--pace-s 20] [--json FILE]

benchmarks/README.md explains each figure.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import psutil
from figures import Figure, figures_document, missed, show_figures, write_document
from footprint import pss_mib
from jupyter_core.utils import ensure_event_loop
from kernel import BenchmarkFailed, Kernel
from machine import describe_machine, machine_slug

from ddp_lessons.course.notebooks.cell_roles import RAISES, tags_of
from ddp_lessons.course.notebooks.notebook_paths import choose, find_course
from ddp_lessons.course.notebooks.starters import read_blank
from ddp_lessons.ranks.system.processes import descendants_of

RESULTS = Path(__file__).with_name("results")
STEM = "02_collectives"
LEARNERS = (1, 5, 10, 20, 30)
PACE_S = 20.0
STUCK_S = 300.0
"""
Seconds after which a cell counts as stuck. With one learner, the slowest cell takes two.
"""
GONE_S = 30.0
_PIDS = "tuple(ranks.supervisor.pids.values())"


@dataclass
class Learner:
    """
    One learner, with the results of their cells and ranks.

    Args:
        number: Number of the learner, from 0. It is also the seed of their pace.
    """

    number: int
    seconds: list = field(default_factory=list)  # of each cell, seen from outside the kernel
    memory_mib: float = 0.0  # of the kernel and all its descendants, at the end
    faults: list = field(default_factory=list)  # cells that failed, as sentences
    is_stuck: bool = False
    has_lost_ranks: bool = False
    pids: list = field(default_factory=list)


def cells_of(stem=STEM):
    """
    Return (source, whether it is meant to raise) of each code cell of a lesson but the last one.

    The last cell stops the ranks, which are measured before that.
    """
    (place,) = [place for place in choose(find_course(), [stem]) if place.is_lesson]
    cells = [cell for cell in read_blank(place)["cells"] if cell["cell_type"] == "code"]
    return [(cell["source"], RAISES in tags_of(cell)) for cell in cells[:-1]]


def run_room(num_learners, cells, pace_s):
    """
    Run cells for all learners at once, each at their own pace. Return the learners at the end.

    Args:
        num_learners: Number of learners.
        cells: List of (source, whether it is meant to raise) (see `cells_of`).
        pace_s: Mean seconds of the pause before a cell. Each pause is random.

    Returns:
        list[Learner]: The learners, with their results.
    """
    learners = [Learner(number) for number in range(num_learners)]
    all_are_through = threading.Barrier(num_learners)
    threads = [
        threading.Thread(target=_sit, args=(learner, cells, pace_s, all_are_through))
        for learner in learners
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return learners


def _sit(learner, cells, pace_s, all_are_through):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as undo:
        undo.enter_context(
            contextlib.closing(ensure_event_loop())
        )  # jupyter_client's loop of this thread
        try:
            kernel = Kernel(folder)
            undo.callback(kernel.client.stop_channels)
            undo.callback(kernel.manager.shutdown_kernel, now=True)
            _work(learner, kernel, cells, pace_s)
        except (BenchmarkFailed, RuntimeError) as error:  # other learners go on
            learner.is_stuck = True
            learner.faults.append(str(error))
        all_are_through.wait()
        if not learner.is_stuck:
            learner.pids = [kernel.pid, *descendants_of(kernel.pid)]
            learner.memory_mib = sum(map(_pss_mib, learner.pids))
        all_are_through.wait()  # shared memory is divided by all processes: none may end yet


def _work(learner, kernel, cells, pace_s):
    pace = random.Random(learner.number)
    before = None
    for number, (source, is_meant_to_raise) in enumerate(cells, start=1):
        time.sleep(pace.expovariate(1 / pace_s))  # learners do not run cells in step
        began_s = time.monotonic()
        result = kernel.run(source, timeout_s=STUCK_S)
        learner.seconds.append(result.prompt_s - began_s)
        if (result.status == "error") != is_meant_to_raise:
            learner.faults.append(f"code cell {number}: {result.error or 'no error'}")
        if before is None and "start_ranks" in source:
            before = kernel.value(_PIDS)
    learner.has_lost_ranks = kernel.value(_PIDS) != before


def _pss_mib(pid):
    with contextlib.suppress(OSError):
        return pss_mib(pid)
    return 0.0


def num_left(learners):
    """
    Return how many processes of the learners still run after up to `GONE_S` seconds.
    """
    found = []
    for pid in (pid for learner in learners for pid in learner.pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    _, left = psutil.wait_procs(found, timeout=GONE_S)
    return len([process for process in left if process.status() != psutil.STATUS_ZOMBIE])


def figures_of(learners, left):
    """
    Return the figures of one room.

    Args:
        learners: The Learners.
        left: Number of processes that outlived them.
    """
    room = f"{len(learners)} learners" if len(learners) > 1 else "1 learner"
    counts = {
        "learners with a cell that failed": sum(bool(learner.faults) for learner in learners),
        "learners who lost a rank": sum(learner.has_lost_ranks for learner in learners),
        "learners who were stuck": sum(learner.is_stuck for learner in learners),
        "processes left at the end": left,
    }
    return [
        Figure(f"{room}: memory of one", "MiB", tuple(one.memory_mib for one in learners)),
        *_times(room, [second for learner in learners for second in learner.seconds]),
        *(Figure(f"{room}: {what}", "", (count,), limit=0.0) for what, count in counts.items()),
    ]


def _times(room, seconds):
    if len(seconds) < 2:  # all were stuck
        return []
    return [
        Figure(f"{room}: a cell, median", "s", (median(seconds),)),
        Figure(f"{room}: a cell, 95 of 100 within", "s", (quantiles(seconds, n=20)[-1],)),
    ]


def parse_arguments(argv):
    """
    Return the command line's arguments.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument(
        "--learners", type=int, nargs="+", default=LEARNERS, metavar="N", help="sizes of the room"
    )
    parser.add_argument(
        "--pace-s", type=float, default=PACE_S, metavar="S", help="mean of seconds between cells"
    )
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 if a limit is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write")
    arguments = parser.parse_args(argv)
    if min(arguments.learners) < 1 or arguments.pace_s <= 0:
        parser.error("--learners, --pace-s: expected numbers above 0")
    return arguments


def main(argv):
    """
    Measure, print the results, and write them to a file.

    Returns:
        int: Exit status: 1 if a cell failed, a learner lost a rank or was stuck, or processes were
        left.
    """
    arguments = parse_arguments(argv)
    machine, cells, figures = describe_machine(), cells_of(), []
    # Keep the learners' predictions apart from those of the user who runs this benchmark.
    state = tempfile.TemporaryDirectory()
    os.environ["DDP_LESSONS_STATE_DIR"] = state.name
    for num_learners in arguments.learners:
        began_s = time.monotonic()
        learners = run_room(num_learners, cells, arguments.pace_s)
        figures += figures_of(learners, num_left(learners))
        print(f"{num_learners} of a room: {time.monotonic() - began_s:.0f} s", flush=True)
        for learner in learners:
            for fault in learner.faults:
                print(f"  learner {learner.number}, {fault}", flush=True)
    print()
    show_figures(figures)
    path = arguments.json
    if path is None and tuple(arguments.learners) == LEARNERS:
        path = RESULTS / f"room-{machine_slug(machine)}.json"
    if path is not None:
        sizes = " ".join(map(str, arguments.learners))
        command = f"python benchmarks/room.py --learners {sizes} --pace-s {arguments.pace_s:g}"
        write_document(path, figures_document(command, machine, figures))
    return int(bool(missed(figures)) and not arguments.no_fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
