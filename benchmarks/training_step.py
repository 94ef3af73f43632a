"""
Measure a training step in a cell against the same script under torchrun.

    python benchmarks/training_step.py [--starts 6] [--repeats 21] [--no-fail]

A kernel with ranks and a torchrun run side by side, and one waits while the other is measured. In
each round both do the same steps, in an order that rotates, so that a slow moment slows both alike.
The script does the steps twice: the distance of "script, again" from 1 shows how much of a ratio is
noise. A sample is the mean of the steps of a round, on the slowest rank. The limit is on the median
of the ratios within rounds: at most 1.03.

Both are started several times. Which cores and which memory two processes get is luck that lasts as
long as they live, and that counts if they exchange small messages: with steps of 2 ms the median
ratio was 0.93 in one start and 1.09 in another.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import (
    RATIO,
    Plan,
    figures_document,
    make_figures,
    missed,
    show_figures,
    write_document,
)
from kernel import BenchmarkFailed, ending, environment, running_kernel
from machine import describe_machine, machine_slug
from rank_processes import in_turns

RESULTS = Path(__file__).with_name("results")
NUM_RANKS = 2
NUM_STEPS = {"small": 100, "large": 20}
SIZE_NAMES = {"small": "4,810 parameters", "large": "1.1 million parameters"}
LIMIT = 1.03
FEWEST_REPEATS = 21
FEWEST_STARTS = 6
_SCRIPT = Path(__file__).with_name("training_script.py")
_END = "# The cell ends here."
_WITHIN_S = 60


class Cells:
    """
    Training steps in cells of a kernel that has ranks.
    """

    def __init__(self, kernel):
        self.kernel = kernel
        kernel.run_well(
            f'from ddp_lessons import start_ranks\nranks = start_ranks({NUM_RANKS}, device="cpu")\n'
        )
        kernel.run_well("%%px\n" + _SCRIPT.read_text().partition(_END)[0])
        for size in NUM_STEPS:
            kernel.run_well(f"%%px\n{size} = prepare({size!r})")

    def step_s(self, size):
        """
        Return the seconds of a step.
        """
        self.kernel.run_well(f"%%px\nseconds = step_s({size}, {NUM_STEPS[size]})")
        return self.kernel.value("ranks.view['seconds'][0]")


class Script:
    """
    Training steps in a script that torchrun has started.
    """

    def __init__(self, process):
        self.process = process

    def step_s(self, size):
        """
        Return the seconds of a step.
        """
        self.process.stdin.write(f"{size} {NUM_STEPS[size]}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise BenchmarkFailed("torchrun ended, see above")
        return float(line)


@contextlib.contextmanager
def running_script():
    """
    Start the script under torchrun, yield a Script, and end it after the block.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(NUM_RANKS), str(_SCRIPT)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(), "OMP_NUM_THREADS": "1"},  # torchrun would set it, with a warning
    )
    try:
        yield Script(process)
        process.stdin.close()  # the script ends with its input
        process.wait(timeout=_WITHIN_S)
    except BaseException:
        with ending(process.pid):
            process.kill()
            process.wait()
        raise


def measure(num_starts, num_rounds):
    """
    Measure the steps of cells and script, round by round.

    Args:
        num_starts: How often both are started.
        num_rounds: Number of measured rounds of a start. One round before them warms up.

    Returns:
        dict: {(way, size): [milliseconds in each round]}.
    """
    samples = {}
    for start in range(num_starts):
        for key, times_ms in _measure_start(num_rounds).items():
            samples.setdefault(key, []).extend(times_ms)
        print(f"start {start + 1} of {num_starts} is measured", flush=True)
    return samples


def _measure_start(num_rounds):
    samples = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        running_kernel(folder) as kernel,
        running_script() as script,
    ):
        cells = Cells(kernel)
        ways = {"cell": cells, "script": script, "script, again": script}
        for round_number in range(-1, num_rounds):
            for size in NUM_STEPS:
                for way in in_turns(list(ways), round_number):
                    milliseconds = 1e3 * ways[way].step_s(size)
                    if round_number >= 0:
                        samples.setdefault((way, size), []).append(milliseconds)
        kernel.run_well("ranks.stop()")
    return samples


def make_plans():
    """
    Return the Plans of the table: a cell against the script, and the script against itself.
    """
    return [
        Plan(
            f"step {'in a cell' if way == 'cell' else 'once more'}, {name}",
            "ms",
            (way, size),
            "the same script under torchrun",
            ("script", size),
            LIMIT if way == "cell" else None,
            RATIO,
            is_paired=True,
        )
        for size, name in SIZE_NAMES.items()
        for way in ("cell", "script, again")
    ]


def parse_arguments(argv):
    """
    Return the command line's arguments.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument(
        "--starts", type=int, default=FEWEST_STARTS, metavar="N", help="starts (default: 6)"
    )
    parser.add_argument(
        "--repeats", type=int, default=FEWEST_REPEATS, metavar="N",
        help="rounds of a start (default: 21)",
    )  # fmt: skip
    parser.add_argument("--no-fail", action="store_true", help="exit with 0 if a limit is missed")
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="where to write (default: benchmarks/results/, if measured in full)",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    if min(arguments.repeats, arguments.starts) < 1:
        parser.error("--starts and --repeats: expected a whole number from 1")
    return arguments


def main(argv):
    """
    Measure, print the results, and write them to a file.

    Returns:
        int: Exit status: 1 if a limit is missed or nothing could be measured.
    """
    arguments = parse_arguments(argv)
    machine = describe_machine()
    if machine["load"] > machine["num_cores"] / 2:
        print(f"This machine is busy (load {machine['load']}): do not trust these times.")
    try:
        samples = measure(arguments.starts, arguments.repeats)
    except BenchmarkFailed as error:
        print(f"Could not measure: {error}", file=sys.stderr)
        return 1
    figures = make_figures(make_plans(), samples)
    show_figures(figures)
    file = arguments.json
    is_whole = arguments.repeats >= FEWEST_REPEATS and arguments.starts >= FEWEST_STARTS
    if file is None and is_whole:
        file = RESULTS / f"training-step-{machine_slug(machine)}.json"
    if file is not None:
        command = (
            f"python benchmarks/training_step.py --starts {arguments.starts} "
            f"--repeats {arguments.repeats}"
        )
        write_document(file, figures_document(command, machine, figures))
        print(f"Written to {file.name}.")
    return 1 if missed(figures) and not arguments.no_fail else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
