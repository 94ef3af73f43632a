"""
The learner's exercises from the terminal: find, check and reset them, and show a solution.

Nothing here overwrites what a learner has written: `reset` keeps the answer in a file beside the
notebook.
"""

import os
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddp_lessons.checks.kit.task_registry import all_tasks, find_task, stem_of
from ddp_lessons.course.building import CELL_TIMEOUT_S
from ddp_lessons.course.building.verify import nbval_command, nbval_environment
from ddp_lessons.course.learner import limited_run, workspace
from ddp_lessons.course.notebooks.canonical import ANSI, dumps, read_notebook
from ddp_lessons.course.notebooks.cell_roles import numbered, tags_of, text_of
from ddp_lessons.course.notebooks.notebook_paths import all_in_force, find_course, with_two_digits
from ddp_lessons.course.notebooks.starters import blank_to_open, is_untouched, read_blank
from ddp_lessons.course.notebooks.text_twins import read_twin
from ddp_lessons.errors import BadInput
from ddp_lessons.files import replace_text

_LAST_CHARACTERS = 2000
_EXCUSES = {"nbval-skip", "raises-exception", "nbval-raises-exception"}
"""
Tags of cells that nbval skips, or lets raise.
"""
_MESSAGE = re.compile(r"Traceback:\s*\n(?P<told>.*)", re.DOTALL)


@dataclass(frozen=True)
class Result:
    """
    The result of one task's check, run from the terminal.

    Args:
        task: The Task.
        is_solved: Whether its check passed.
        told: The message of the check if it failed, else "".
        mistake: Name of the mistake, or "" if it is not known.
    """

    task: object
    is_solved: bool
    told: str = ""
    mistake: str = ""


@dataclass(frozen=True)
class Isolation:
    """
    The bounds within which another person's notebook runs.

    Args:
        limits: The Limits of its time, memory and processes.
        env: Dict of its environment variables.
        output: Path of the file that its output is written to.
        is_over: Function without arguments; the run is ended early once it returns True.
    """

    limits: limited_run.Limits
    env: dict
    output: Path
    is_over: Callable


def find_exercise(stem, course=None):
    """
    Return the NotebookPaths of an exercise.

    Args:
        stem: The exercise's lesson id or number: "02_collectives", "02" or "2".
        course: Path of the course's folder; default: the one that `find_course` finds.

    Raises:
        BadInput: There is no such exercise.
    """
    all_paths, name = all_exercises(course), with_two_digits(stem)
    for paths in all_paths:
        if name in (paths.stem, paths.stem.partition("_")[0]):
            return paths
    raise BadInput(
        f"Unknown exercise: expected one of {', '.join(paths.stem for paths in all_paths)} "
        f"(got {stem!r}). Name it as its file is named, without the ending."
    )


def all_exercises(course=None):
    """
    Return a list with the NotebookPaths of each exercise of the course.

    Args:
        course: Path of the course's folder; default: the one that `find_course` finds.
    """
    return [paths for paths in all_in_force(course or find_course()) if not paths.is_lesson]


def learners_notebook(paths, folder=None):
    """
    Return the path of the learner's notebook of an exercise.

    Args:
        paths: The NotebookPaths of the exercise.
        folder: The learner's folder: a copy of the course, or a folder of exercises. Default:
            the current folder, and then `my-course`.

    Raises:
        BadInput: The folder has no such notebook.
    """
    name = paths.blank.name
    folders = [Path(folder)] if folder else [Path.cwd(), workspace.usual_folder()]
    for one in folders:
        # In a copy of the course, a lesson's notebook has the same file name.
        own = workspace.enclosing(one)
        path = own / "exercises" / name if own else one / name
        if path.is_file():
            return path.resolve()
    raise BadInput(
        f"No such exercise here: expected {name} in the folder (got {folders[-1]}). "
        f"Run `ddp-lessons copy {folders[-1]}` to put it there."
    )


def tasks_of_stem(stem):
    """
    Return the tasks of an exercise, in order.
    """
    return [task for task in all_tasks().values() if stem_of(task) == stem]


def check_notebook(path, paths, apart=None):
    """
    Run a learner's notebook under nbval and return the result of each task's check.

    Stored outputs do not count: every cell runs again in a fresh kernel.

    Args:
        path: The learner's notebook.
        paths: The NotebookPaths of its exercise, whose starter has the original check cells.
        apart: The Isolation to run it in; None for a notebook that this user has written.

    Returns:
        list[Result]: One for each task.

    Raises:
        BadInput: The notebook cannot be read, or did not run.
    """
    try:
        notebook = read_notebook(path)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"Not a notebook: {error} `ddp-lessons reset {paths.stem}` brings a new one, and keeps "
            "this file beside it."
        ) from None
    given = _fixed_sources(read_blank(paths))
    sources = _judged_sources(notebook)
    missing = [source for source in given if source not in sources]
    try:
        failures, fault = _run(path, apart)
    except _NoKernel:  # a busy machine did not start the kernel: try again
        failures, fault = _run(path, apart)
    results = []
    for task in tasks_of_stem(paths.stem):
        if fault:
            results.append(Result(task, False, apart.limits.words(fault), f"too-much-{fault}"))
            continue
        call = f"check.{task.name}()"
        if missing and (call in missing or "start_ranks" in missing[0]):
            told = (
                "The cell that checks it, or the first cell, was changed or is missing. Put it "
                f"back as it was, or run `ddp-lessons reset {paths.stem}`."
            )
            results.append(Result(task, False, told, "check-changed"))
            continue
        at = max(n for n, source in enumerate(sources) if source == call)
        told = failures.get(at)
        results.append(Result(task, told is None, told or ""))
    return results


def reset_notebook(path, paths):
    """
    Replace a learner's notebook by the starter, and keep the learner's answer in another file.

    Args:
        path: Path of the learner's notebook; it need not exist.
        paths: The NotebookPaths of its exercise.

    Returns:
        Path or None: The file that now holds the learner's answer; None if there was no notebook,
        or if it had only the starter's own cells.

    Raises:
        BadInput: This user may not write to the folder or to the notebook.
    """
    try:
        return _reset(path, blank_to_open(paths, path))
    except OSError as error:
        raise BadInput(
            f"Cannot write there: expected a folder of your own (got {path.parent}: "
            f"{error.strerror}). Run `ddp-lessons copy ~/{workspace.NAME}`, and work there."
        ) from None


def _reset(path, blank):
    kept = None
    if path.exists() and not is_untouched(path, blank):
        number = 1
        while kept is None:
            candidate = path.with_name(f"{path.stem}.kept-{number}.ipynb")
            try:
                os.link(path, candidate)  # fails if it exists, so that two resets lose nothing
            except FileExistsError:
                number += 1
            else:
                kept = candidate
    replace_text(path, dumps(blank))
    return kept


def solution_of(number):
    """
    Return the source of a task's solution.

    Args:
        number: The task's number, such as "02.1".

    Raises:
        BadInput: There is no such task.
    """
    paths = find_exercise(stem_of(find_task(number)))
    current, parts = None, []
    for _, cell in numbered(read_twin(paths.text)):
        if cell["cell_type"] == "markdown" and cell["source"].startswith("## "):
            current = cell["source"].split()[1]
        if current == number and "answer" in tags_of(cell):
            parts.append(cell["source"])
    return "\n\n".join(parts)


def _judged_sources(notebook):
    """
    Return the source of each code cell; None for a cell that nbval skips or lets raise.
    """
    return [
        None if _EXCUSES & set(tags_of(cell)) else text_of(cell)
        for _, cell in numbered(notebook, "code")
    ]


def _fixed_sources(blank):
    """
    Return the sources of the cells that a learner must not change: setup and check cells.
    """
    cells = [cell for _, cell in numbered(blank, "code") if {"setup", "check"} & set(tags_of(cell))]
    return [text_of(cell) for cell in cells]


def _run(path, apart):
    """
    Return {number of a failed code cell, from 0: its error}, and the exceeded limit or "".
    """
    with tempfile.TemporaryDirectory(prefix="ddp-lessons-") as folder:
        report = Path(folder) / "report.xml"
        options = ("--nbval-lax", f"--junitxml={report}", "--color=no")
        command = nbval_command(path, CELL_TIMEOUT_S, *options)
        if apart is None:
            done = subprocess.run(
                command, cwd=path.parent, env=nbval_environment(), capture_output=True, text=True
            )
            status, said, fault = done.returncode, done.stdout, ""
        else:
            where = {"cwd": path.parent, "output": apart.output, "is_over": apart.is_over}
            status, fault = limited_run.run(command, env=apart.env, limits=apart.limits, **where)
            said = limited_run.last_words(apart.output)
        if fault:
            return {}, fault
        if not report.is_file():
            raise BadInput(
                f"The notebook did not run: {path.name} must be one that nbval can run "
                f"(got pytest status {status}).\n{said[-_LAST_CHARACTERS:]}"
            )
        cells = list(ElementTree.parse(report).iter("testcase"))
        if cells and all(map(_no_kernel, cells)):
            raise _NoKernel(
                f"The notebook did not run: its kernel must start ({_no_kernel(cells[0])}). Check "
                "it again when the machine has less to do."
            )
        return {
            int(cell.get("name", "Cell -1").split()[1]): _told(cell)
            for cell in cells
            if any(cell.find(kind) is not None for kind in ("failure", "error", "skipped"))
        }, ""


class _NoKernel(BadInput):
    pass


def _no_kernel(cell):
    # nbval reports this error for every cell if the kernel did not start, else for no cell.
    error = cell.find("error")
    told = "" if error is None else error.get("message", "")
    return told if told.startswith("failed on setup") else ""


def _told(cell):
    if cell.find("skipped") is not None:  # nbval's mark for a failure after a cell's timeout
        return f"It was not judged: a cell above it took longer than {CELL_TIMEOUT_S:.0f} s."
    failure = cell.find("failure")
    text = ANSI.sub("", (cell.find("error") if failure is None else failure).text or "")
    text = re.sub(r"#x1B\[[0-9;]*m", "", text)
    found = _MESSAGE.search(text)
    return (found["told"] if found else text).strip()
