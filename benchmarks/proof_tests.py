"""
Run tests of this project for the proof on GPUs, and write the result of each to a file.

    python benchmarks/proof_tests.py ANSWER --gpu                    those marked `gpu`
    python benchmarks/proof_tests.py ANSWER --faults 4 --shard 0 5   a fifth of the faults

The faults put their tensors on the device of its ranks: a GPU, if there is one.
"""

import argparse
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MATRIX = "tests/faults/prompt/test_every_fault.py"
MOST_LINES = 12
MOST_CHARACTERS = 300


class Outcomes:
    """
    A plugin of pytest that runs a share of the tests and records the result of each.

    Args:
        shard, num_shards: Every `num_shards`-th test is run, from number `shard` on.
        wanted: Text that a test's name must have in it.
    """

    def __init__(self, shard=0, num_shards=1, wanted=""):
        self.shard, self.num_shards, self.wanted = shard, num_shards, wanted
        self.found = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if self.wanted in item.nodeid]
        items[:] = items[self.shard :: self.num_shards]

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.rpartition("::")[2]
        if report.failed:
            self._note(name, "failed", _first_lines(report))
        elif report.skipped:
            self._note(name, "skipped", str(report.longrepr[2]))
        elif report.when == "call":
            self._note(name, "passed", "")

    def pytest_collectreport(self, report):
        if report.failed:
            self._note(report.nodeid, "failed", _first_lines(report))

    def _note(self, name, status, why):
        # A failure of the test, its set-up or its tear-down counts more than any other result.
        if self.found.get(name, {}).get("status") != "failed":
            self.found[name] = {"name": name, "status": status, "why": why}


def _first_lines(report):
    """
    Return the lines of a failed test's report that pytest marks with E.
    """
    lines = report.longreprtext.splitlines()
    said = [line[1:].strip() for line in lines if line.startswith("E ")]
    return "\n".join(line[:MOST_CHARACTERS] for line in (said or lines)[:MOST_LINES])


def gpu_files(folder=ROOT / "tests"):
    """
    Return the files that hold tests that need a GPU.

    Other files may import packages that are not installed on a machine with a GPU.
    """
    mark = "@pytest.mark." + "gpu"
    return sorted(str(path) for path in folder.rglob("test_*.py") if mark in path.read_text())


def main(argv):
    """
    Run the tests and write the answer.

    Returns:
        int: 0 if pytest ran to its end, else pytest's exit status.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("answer", type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--gpu", action="store_true", help="tests that are marked gpu")
    what.add_argument(
        "--faults", type=int, choices=(2, 4), metavar="RANKS", help="all kinds of faults"
    )
    parser.add_argument("--shard", type=int, nargs=2, default=(0, 1), metavar=("NUMBER", "OF"))
    arguments = parser.parse_args(argv)
    command = ["-p", "no:cacheprovider", "-q", "--tb=short", "--color=no"]
    if arguments.gpu:
        outcomes = Outcomes(*arguments.shard)
        command += ["-m", "gpu", *gpu_files()]
    else:
        outcomes = Outcomes(*arguments.shard, wanted=f"{arguments.faults}_ranks")
        command += [MATRIX]
    status = pytest.main(command, plugins=[outcomes])
    arguments.answer.write_text(json.dumps({"outcomes": list(outcomes.found.values())}))
    return 0 if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
