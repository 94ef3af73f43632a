"""
The learner's exercises from the terminal: find, check and reset them, and show a solution.

Nothing here overwrites what a learner has written: `reset` keeps the answer in a file beside the
notebook.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from ddp_lessons.checks.kit.task_registry import all_tasks, find_task, stem_of
from ddp_lessons.course.learner import notebook_runs, workspace
from ddp_lessons.course.notebooks.canonical import dumps, read_notebook
from ddp_lessons.course.notebooks.cell_roles import numbered, tags_of, text_of
from ddp_lessons.course.notebooks.notebook_paths import all_in_force, find_course, with_two_digits
from ddp_lessons.course.notebooks.starters import blank_to_open, is_untouched, read_blank
from ddp_lessons.course.notebooks.text_twins import read_twin
from ddp_lessons.errors import BadInput
from ddp_lessons.files import replace_text

_EXCUSES = {"nbval-skip", "raises-exception", "nbval-raises-exception"}
"""
Tags of cells that nbval skips, or lets raise.
"""


@dataclass(frozen=True)
class Result:
    """
    The result of one task's check, run from the terminal.

    Args:
        task: The Task.
        is_solved: Whether its check passed.
        message: The message of the check if it failed, else "".
        mistake: Name of the mistake, or "" if it is not known.
    """

    task: object
    is_solved: bool
    message: str = ""
    mistake: str = ""


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
        BadInput: The folder has no such notebook, or may not be read.
    """
    name = paths.blank.name
    folders = [Path(folder)] if folder else [Path.cwd(), workspace.usual_folder()]
    for one in folders:
        try:
            # In a copy of the course, a lesson's notebook has the same file name.
            own = workspace.enclosing(one)
            path = own / "exercises" / name if own else one / name
            if path.is_file():
                return path.resolve()
        except PermissionError as error:
            raise BadInput(
                f"Cannot read there: expected a folder that you may read (got {one}: "
                f"{error.strerror}). Name a folder of yours."
            ) from error
    raise BadInput(
        f"No such exercise here: expected {name} in the folder (got {folders[-1]}). "
        f"Run `ddp-lessons copy {folders[-1]}` to put it there."
    )


def tasks_of_stem(stem):
    """
    Return the tasks of an exercise, in order.
    """
    return [task for task in all_tasks().values() if stem_of(task) == stem]


def check_notebook(path, paths):
    """
    Run a learner's notebook under nbval and return the result of each task's check.

    Stored outputs do not count: every cell runs again in a fresh kernel.

    Args:
        path: The learner's notebook.
        paths: The NotebookPaths of its exercise, whose starter has the original check cells.

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
    message_by_cell, _ = notebook_runs.run_notebook(path)
    results = []
    for task in tasks_of_stem(paths.stem):
        call = f"check.{task.name}()"
        if missing and (call in missing or "start_ranks" in missing[0]):
            message = (
                "The cell that checks it, or the first cell, was changed or is missing. Put it "
                f"back as it was, or run `ddp-lessons reset {paths.stem}`."
            )
            results.append(Result(task, False, message, "check-changed"))
            continue
        at = max(n for n, source in enumerate(sources) if source == call)
        results.append(result_of(task, message_by_cell, at))
    return results


def result_of(task, message_by_cell, number):
    """
    Return the Result of a task from a run of the notebook.

    Args:
        task: The Task.
        message_by_cell: Dict from a cell's number to its error, as `notebook_runs` returns it.
        number: Number of the code cell with the task's check, from 0.
    """
    message = message_by_cell.get(number, "It was not judged: its check did not run.")
    return Result(task, message == "", message)


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
