"""
The run of a learner's notebook under nbval, and the failed cells that nbval reports.
"""

import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddp_lessons.course.building import CELL_TIMEOUT_S
from ddp_lessons.course.building.verify import nbval_command, nbval_environment
from ddp_lessons.course.learner import limited_run
from ddp_lessons.course.notebooks.canonical import ANSI
from ddp_lessons.errors import BadInput
from ddp_lessons.files import read_foreign

_LAST_CHARACTERS = 2000
_MOST_BYTES = 16 * 2**20
_NUMBER = re.compile(r"Cell (\d+)")
_MESSAGE = re.compile(r"Traceback:\s*\n(?P<told>.*)", re.DOTALL)


@dataclass(frozen=True)
class Isolation:
    """
    The bounds within which another person's notebook runs.

    Args:
        limits: The Limits of its time, memory and processes.
        env: Dict of its environment variables.
        folder: Path of the folder that it may write to, and where its notebook is.
        output: Path of the file that its output is written to, outside of that folder.
        is_over: Function without arguments; the run is ended early once it returns True.
        command_as: Function that returns the command to run in place of a given one, such as one
            that runs it as another user.
    """

    limits: limited_run.Limits
    env: dict
    folder: Path
    output: Path
    is_over: Callable
    command_as: Callable = list


def run_notebook(path, apart=None):
    """
    Run a notebook under nbval in a fresh kernel.

    Args:
        path: The notebook.
        apart: The Isolation to run it in; None for a notebook that this user has written.

    Returns:
        (dict, str): {number of a code cell that ran, from 0: its error, or ""}, and the name of
        the limit that was exceeded, or "".

    Raises:
        BadInput: The notebook did not run.
    """
    try:
        return _run(path, apart)
    except _NoKernel:  # a busy machine did not start the kernel: try again
        return _run(path, apart)


def _run(path, apart):
    if apart is None:
        with tempfile.TemporaryDirectory(prefix="ddp-lessons-") as folder:
            report = Path(folder) / "report.xml"
            done = subprocess.run(
                _command(path, report), cwd=path.parent, env=nbval_environment(),
                capture_output=True, text=True,
            )  # fmt: skip
            return _message_by_cell(path, report, done.returncode, done.stdout), ""
    report = apart.folder / "report.xml"
    report.unlink(missing_ok=True)  # of a first try
    status, fault = limited_run.run(
        apart.command_as(_command(path, report)), cwd=path.parent, env=apart.env,
        limits=apart.limits, output=apart.output, is_over=apart.is_over,
    )  # fmt: skip
    if fault:
        return {}, fault
    return _message_by_cell(path, report, status, limited_run.last_words(apart.output)), ""


def _command(path, report):
    options = ("--nbval-lax", f"--junitxml={report}", "--color=no")
    return nbval_command(path, CELL_TIMEOUT_S, *options)


def _message_by_cell(path, report, status, said):
    """
    Return {number of a code cell that ran, from 0: its error, or ""} from nbval's report.
    """
    try:
        # The notebook's own code may have put something else in its place.
        found = read_foreign(report, _MOST_BYTES)
        cells = list(ElementTree.fromstring(found).iter("testcase"))
    except (OSError, ValueError, ElementTree.ParseError):
        raise BadInput(
            f"The notebook did not run: {path.name} must be one that nbval can run "
            f"(got pytest status {status}).\n{_printable(said[-_LAST_CHARACTERS:])}"
        ) from None
    if cells and all(map(_no_kernel, cells)):
        raise _NoKernel(
            f"The notebook did not run: its kernel must start ({_no_kernel(cells[0])}). Check "
            "it again when the machine has less to do."
        )
    numbers = [_NUMBER.match(cell.get("name", "")) for cell in cells]
    return {
        int(number[1]): _told(cell) for number, cell in zip(numbers, cells, strict=True) if number
    }


def _printable(text):
    # A terminal obeys what an answer prints: leave out colours, and what is not seen.
    return "".join(sign for sign in ANSI.sub("", text) if sign.isprintable() or sign == "\n")


class _NoKernel(BadInput):
    pass


def _no_kernel(cell):
    # nbval reports this error for every cell if the kernel did not start, else for no cell.
    error = cell.find("error")
    told = "" if error is None else error.get("message", "")
    return told if told.startswith("failed on setup") else ""


def _told(cell):
    if not any(cell.find(kind) is not None for kind in ("failure", "error", "skipped")):
        return ""
    if cell.find("skipped") is not None:  # nbval's mark for a failure after a cell's timeout
        return f"It was not judged: a cell above it took longer than {CELL_TIMEOUT_S:.0f} s."
    failure = cell.find("failure")
    text = ANSI.sub("", (cell.find("error") if failure is None else failure).text or "")
    text = re.sub(r"#x1B\[[0-9;]*m", "", text)
    found = _MESSAGE.search(text)
    return (found["told"] if found else text).strip() or "It failed without a message."
