"""
A program that runs tests, runs some of them again if they fail, and prints how long they took.

    python scripts/run_tests.py                  the tests of `make test`
    python scripts/run_tests.py -k ring          some of them; all options are pytest's
    python scripts/run_tests.py --all            every test, part by part

`--all` continues where it was ended: a test that has passed runs again only after a file changes.
A test of `faults`, `platform` or `browser` that fails is run once more, alone. If it passes then,
the table FLAKY lists it, and build/tests/*/report*.xml. More than two such tests fail the run, and
so does one of another folder that failed and passes when `--all` continues.
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
FIRST_FAILURES = "first_failures.json"
FLAKY = "properties/property[@name='flaky']"
"""
Path of the mark of a flaky test, from its `testcase` in a JUnit report.
"""
BANK = "tests/answers/bank"
"""
Folder of the bank, whose tests wait for ranks: on two cores, four workers take 4.7 minutes, and
three take 5.2. The tests of `make test` do not get faster with a fourth worker.
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
    A part of the tests, for one run of pytest.

    Args:
        name: The part's name in the table of minutes.
        options: Paths and options for pytest.
        counts_lines: Whether `--all` counts the lines of the textbook that it reaches.
    """

    name: str
    options: tuple
    counts_lines: bool = False

    @property
    def folder(self):
        """
        The path of the folder with this part's results.
        """
        return RESULTS / self.name.replace(" ", "-").replace(",", "")

    @property
    def workers(self):
        """
        The options of pytest that set the number of workers.
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
    Run the tests of a part, and run failed tests a second time if all of them are in RERUN.

    Returns:
        (bool, dict[str, str]): Whether all passed at last; the first failure of each test that
            failed before, in this run or in one that it continues, and passes now, by its name.
    """
    part.folder.mkdir(parents=True, exist_ok=True)
    resumes = "--resume" in options
    first_failures = _first_failures(part) if resumes else {}
    report, noted = part.folder / "report.xml", part.folder / "failed.json"
    if resumes and report.exists():
        report.rename(part.folder / f"report-{time.time_ns()}.xml")  # of the run that we continue
    noted.write_text("{}")  # pytest writes no file if it does not understand its options
    status = _pytest(part.folder, [*part.workers, *part.options, *options, f"--junitxml={report}"])
    failed = json.loads(noted.read_text())
    first_failures = failed | first_failures
    (part.folder / FIRST_FAILURES).write_text(json.dumps(first_failures))
    # If too few lines are covered, pytest fails without a failed test.
    if status == FAILED and failed and all(test.startswith(RERUN) for test in failed):
        alone = part.folder / "alone"
        alone.mkdir(exist_ok=True)
        failed = {test for test in failed if _pytest(alone, [test]) != PASSED}
        is_good = not failed
    else:
        is_good = status == PASSED or (status == NO_TESTS and resumes)
    flaky = {test: text for test, text in first_failures.items() if test not in failed}
    for file in part.folder.glob("report*.xml"):
        mark_flaky(file, flaky)
    return is_good, flaky


def _first_failures(part):
    """
    Return the first failure of each test that has failed since a file changed, by its name.
    """
    first_failures = {}
    for name in ("failed.json", FIRST_FAILURES):  # an ended run has written only the former
        file = part.folder / name
        first_failures |= json.loads(file.read_text()) if file.exists() else {}
    return first_failures


def _pytest(folder, options):
    # nbval's plugin takes 2 s to import; a test that needs it starts it in another process.
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", f"--outcomes={folder}", *options]
    # Tests start thousands of processes. Without bytecode files, each would compile our modules.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def mark_flaky(report, first_failures):
    """
    Write into a JUnit report which tests passed only the second time, with their first failure.
    A test that is marked already stays as it is.

    Args:
        report: Path of the report.
        first_failures: Dict from a test's name, as pytest writes it, to its first failure.
    """
    tree = ET.parse(report)
    for suite in tree.iter("testsuite"):
        for case in suite.iter("testcase"):
            test = re.sub(r"@[^\]]+$", "", case.get("name"))  # pytest-xdist adds its group
            name = f"{case.get('classname').replace('.', '/')}.py::{test}"
            if name not in first_failures or case.find(FLAKY) is not None:
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
    Delete the results of earlier runs if a file has changed since then.
    """
    noted, now = RESULTS / "files.txt", state_of_files()
    if not noted.exists() or noted.read_text() != now:
        shutil.rmtree(RESULTS, ignore_errors=True)
        RESULTS.mkdir(parents=True)
        noted.write_text(now)


def are_all_lines_reached():
    """
    Print the textbook's lines that no test has reached, without those for GPUs; True if none.
    """
    # Do not omit the files that only tests/platform reaches: those tests have run, too.
    command = [sys.executable, "-m", "coverage", "report", "--omit=none"]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def run_all(options):
    """
    Run every part, and print the minutes of each.

    Returns:
        int: 0 if every test passed, the first or the second time, else 1.
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
        all_flaky |= flaky
    print("\n" + "\n".join([f"{'part':<22} minutes", *rows]))
    return conclude(is_good and are_all_lines_reached(), all_flaky)


def conclude(is_good, flaky):
    """
    Print the table of tests that failed first and passed later.

    Args:
        is_good: Whether all tests passed at last.
        flaky: Dict from such a test's name to its first failure.

    Returns:
        int: The exit code.
    """
    if flaky:
        print("\nFLAKY: failed, and passed when run again. The first failure of each:")
    for test, first_failure in flaky.items():
        lines = first_failure.strip().splitlines()
        message = [line for line in lines if line.startswith("E ")] or lines[-1:]
        print(f"  {test}\n    {message[0]}\n    {lines[-1]}")
    if len(flaky) > MOST_FLAKY:
        print(f"Too many: at most {MOST_FLAKY} may be flaky (got {len(flaky)}).")
    by_luck = [test for test in flaky if not test.startswith(RERUN)]
    if by_luck:
        print(f"Failed by luck: find the cause of {', '.join(by_luck)}.")
    return 0 if is_good and len(flaky) <= MOST_FLAKY and not by_luck else 1


def main(arguments):
    """
    Run the tests that the command line names.
    """
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if arguments[:1] == ["--all"]:
        return run_all(arguments[1:])
    is_whole = all(argument.startswith("--") for argument in arguments)  # such as --cov
    part = Part("make test" if is_whole else "some", tuple(arguments))
    is_good, flaky = run_part(part)
    return conclude(is_good, flaky)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
