"""
Run tests, run those of dear folders once more if they fail, and say how long each part took.

    python scripts/run_tests.py                  the tests of `make test`
    python scripts/run_tests.py -k ring          some of them; all options are pytest's
    python scripts/run_tests.py --all            every test, part by part

`--all` goes on where it was ended: a test that has passed is not run again until a file changes.
A test of `faults`, `platform` or `browser` that fails is run once more, alone. If it passes then,
it stands in the table FLAKY, and in build/tests/*/report.xml. More than two of these fail the run.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "tests"
RERUN = ("tests/faults/", "tests/platform/", "tests/browser/")
SERIAL = ("tests/faults/prompt", "tests/faults/long", "tests/platform", "tests/browser")
"""
Folders whose tests assert seconds or take the whole machine: one worker runs them.
"""
MOST_FLAKY = 2
BANK = "tests/answers/bank"
"""
Its tests wait for ranks: four workers take 4.7 minutes on two cores, and three take 5.2. The tests
of `make test` are none the faster for a fourth.
"""
WORKERS = ("--dist=loadgroup", "--no-loadscope-reorder")
COUNTING = ("--cov", "--cov-append", "--cov-report=", "--cov-fail-under=0")
PASSED, FAILED, NO_TESTS = 0, 1, 5
"""
Exit codes of pytest.
"""


@dataclass(frozen=True)
class Part:
    """
    Tests that one run of pytest takes.

    Args:
        name: What the table of minutes says.
        options: Paths and options for pytest.
        counts_lines: Whether `--all` counts the lines of the textbook that it reaches.
    """

    name: str
    options: tuple
    counts_lines: bool = False

    @property
    def folder(self):
        """
        Where this part's results are.
        """
        return RESULTS / self.name.replace(" ", "-").replace(",", "")

    @property
    def workers(self):
        """
        Options that say how many workers run it.
        """
        is_serial = any(option.startswith(SERIAL) for option in self.options)
        if is_serial or "alone" in self.options:
            return ()
        return f"--numprocesses={4 if BANK in self.options else 3}", *WORKERS


PARTS = (
    Part("make test", (), counts_lines=True),
    Part("bank", (BANK, "-m", "not alone")),
    Part("bank, by the clock", (BANK, "-m", "alone")),
    Part("notebooks, solved", ("tests/notebooks/solved",)),
    Part("notebooks, commands", ("tests/notebooks/commands",)),
    Part("faults, in seconds", ("tests/faults/prompt",)),
    Part("platform", ("tests/platform",), counts_lines=True),
    Part("browser", ("tests/browser",)),
    Part("faults, long", ("tests/faults/long",)),
)


def run_part(part, options=()):
    """
    Run the tests of a part, and once more each one that may be run again.

    Returns:
        (bool, list[str]): Whether all passed at last; the tests that passed the second time only.
    """
    part.folder.mkdir(parents=True, exist_ok=True)
    report = part.folder / "report.xml"
    noted = part.folder / "failed.json"
    noted.write_text("{}")  # pytest writes none if it does not understand its options
    status = _pytest(part.folder, [*part.workers, *part.options, *options, f"--junitxml={report}"])
    failed = json.loads(noted.read_text())
    # pytest fails without a failed test where too few lines are covered.
    may_rerun = bool(failed) and all(test.startswith(RERUN) for test in failed)
    if status != FAILED or not may_rerun:
        return status == PASSED or (status == NO_TESTS and "--resume" in options), []
    alone = part.folder / "alone"
    alone.mkdir(exist_ok=True)
    flaky = [test for test in failed if _pytest(alone, [test]) == PASSED]
    mark_flaky(report, {test: failed[test] for test in flaky})
    return len(flaky) == len(failed), flaky


def _pytest(folder, options):
    # nbval's plugin takes 2 s to import; a test that needs it starts it in another process.
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", f"--outcomes={folder}", *options]
    # Tests start thousands of processes: each would compile our modules anew.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def mark_flaky(report, first_failures):
    """
    Write into a JUnit report which tests passed the second time only, with their first failure.

    Args:
        report: Path of the report.
        first_failures: Name of a test, as pytest writes it -> what it said when it failed.
    """
    tree = ET.parse(report)
    for suite in tree.iter("testsuite"):
        for case in suite.iter("testcase"):
            test = re.sub(r"@[^\]]+$", "", case.get("name"))  # pytest-xdist adds its group
            name = f"{case.get('classname').replace('.', '/')}.py::{test}"
            if name not in first_failures:
                continue
            for failure in [*case.findall("failure"), *case.findall("error")]:
                case.remove(failure)
                counter = "failures" if failure.tag == "failure" else "errors"
                suite.set(counter, str(int(suite.get(counter)) - 1))
            properties = ET.SubElement(case, "properties")
            ET.SubElement(properties, "property", name="flaky", value=first_failures[name])
    tree.write(report, encoding="utf-8", xml_declaration=True)


def state_of_files():
    """
    Return a text that changes with the environment, and with any file that is not ignored.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    digest = hashlib.sha256(sys.prefix.encode())  # TORCH=2.14.1 is another environment
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        if (ROOT / name).is_file():
            digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    return digest.hexdigest()


def forget_other_files():
    """
    Forget what passed, and which lines were reached, before a file was changed.
    """
    noted, now = RESULTS / "files.txt", state_of_files()
    if not noted.exists() or noted.read_text() != now:
        shutil.rmtree(RESULTS, ignore_errors=True)
        RESULTS.mkdir(parents=True)
        noted.write_text(now)


def are_all_lines_reached():
    """
    Print the lines of the textbook that no test has reached; lines for GPUs are left out.
    """
    # Without the config's list of files that need tests/platform: those tests have run, too.
    command = [sys.executable, "-m", "coverage", "report", "--omit=none"]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def run_all(options):
    """
    Run every part, and print what each took.

    Returns:
        int: 0 if every test passed, at the second time at most.
    """
    forget_other_files()
    os.environ["COVERAGE_FILE"] = str(RESULTS / "coverage")
    rows, all_flaky, is_good = [], {}, True
    for part in PARTS:
        began = time.monotonic()
        counting = COUNTING if part.counts_lines else ()
        passed, flaky = run_part(part, ["--resume", *counting, *options])
        is_good &= passed
        noted = part.folder / "seconds.txt"
        before_s = float(noted.read_text()) if noted.exists() else 0.0
        seconds = before_s + time.monotonic() - began
        noted.write_text(f"{seconds:.1f}")
        rows.append(f"{part.name:<22} {seconds / 60:6.1f}   {'passed' if passed else 'FAILED'}")
        all_flaky |= dict.fromkeys(flaky, part)
    print("\n" + "\n".join([f"{'part':<22} minutes", *rows]))
    return finish_cell(is_good and are_all_lines_reached(), all_flaky)


def finish_cell(is_good, flaky):
    """
    Print the table of tests that passed the second time only.

    Args:
        is_good: Whether all tests passed at last.
        flaky: The test's name -> its Part.

    Returns:
        int: The exit code.
    """
    if flaky:
        print("\nFLAKY: failed, and passed when run alone. The first failure of each:")
    for test, part in flaky.items():
        first = json.loads((part.folder / "failed.json").read_text())[test]
        print(f"  {test}\n    {first.strip().splitlines()[-1]}")
    if len(flaky) > MOST_FLAKY:
        print(f"Too many: at most {MOST_FLAKY} may be flaky (got {len(flaky)}).")
    return 0 if is_good and len(flaky) <= MOST_FLAKY else 1


def main(arguments):
    """
    Run what the command line names.
    """
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if arguments[:1] == ["--all"]:
        return run_all(arguments[1:])
    is_whole = all(argument.startswith("--") for argument in arguments)  # such as --cov
    part = Part("make test" if is_whole else "some", tuple(arguments))
    is_good, flaky = run_part(part)
    return finish_cell(is_good, dict.fromkeys(flaky, part))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
