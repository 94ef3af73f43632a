"""
The notebook that is run to judge a submission: our setup, the learner's `%%px` cells, our checks.

Such cells run on ranks only, so nothing that was handed in runs in the kernel, where the checks
are. A check cell that the learner has changed or deleted costs nothing.
"""

import re
from dataclasses import dataclass

import nbformat

from ddp_lessons.course.learner.exercises import tasks_of_stem
from ddp_lessons.course.notebooks.canonical import canonical, read_notebook
from ddp_lessons.course.notebooks.cell_roles import numbered, tags_of, text_of
from ddp_lessons.course.notebooks.starters import read_blank
from ddp_lessons.errors import BadInput, NotebookRefused

_HEADING = re.compile(r"^## (\d\d\.\d)\b", re.MULTILINE)
_ANSWER = re.compile(r"%%px[ \t]*(\n|$)")


@dataclass(frozen=True)
class Judged:
    """
    A notebook that judges the answers of one submission.

    Args:
        notebook: The notebook to run.
        checks: Dict from a task's number to the number of its check, counted from 0 among the
            notebook's code cells.
        answers: Dict from a task's number to the learner's cells that stand below its heading.
        is_begun: Whether these cells differ from those of the course's starter.
    """

    notebook: object
    checks: dict
    answers: dict
    is_begun: bool


def make(path, paths):
    """
    Return the Judged of a learner's notebook.

    Args:
        path: Path of the learner's notebook.
        paths: The NotebookPaths of the exercise.

    Raises:
        BadInput: The file is no notebook, or the notebook of something else.
    """
    try:
        cells = read_notebook(path)["cells"]
    except NotebookRefused as error:
        raise BadInput(f"Not a notebook: {error} Ask for it again, saved in JupyterLab.") from error
    tasks = tasks_of_stem(paths.stem)
    _refuse_something_else(cells, paths, tasks)
    starter = read_blank(paths)
    ours = [cell for _, cell in numbered(starter, "code")]
    setup = [cell for cell in ours if "setup" in tags_of(cell)]
    rest = [cell for cell in ours if "teardown" in tags_of(cell)]
    names = {task.number: task.name for task in tasks}
    answers = _answers(cells, names)
    judged, checks = list(setup), {}
    for number, sources in answers.items():
        judged += map(nbformat.v4.new_code_cell, sources)
        if number in names:
            checks[number] = len(judged)
            judged.append(nbformat.v4.new_code_cell(f"check.{names[number]}()"))
    notebook = nbformat.v4.new_notebook(cells=judged + rest)
    is_begun = answers != _answers(starter["cells"], names)
    return Judged(canonical(notebook, paths.stem), checks, answers, is_begun)


def _answers(cells, numbers):
    """
    Return {task's number: sources of the `%%px` cells below its heading}, in the learner's order.

    Cells above the first heading have the key "". Tasks without a heading come last.
    """
    found: dict = {"": []}
    current = ""
    for cell in cells:
        if cell["cell_type"] == "markdown":
            headings = [one for one in _HEADING.findall(cell["source"]) if one in numbers]
            current = headings[-1] if headings else current
            found.setdefault(current, [])
        elif cell["cell_type"] == "code" and _ANSWER.match(text_of(cell)):
            found[current].append(text_of(cell))
    return found | {number: [] for number in numbers if number not in found}


def _refuse_something_else(cells, paths, tasks):
    sources = "\n".join(text_of(cell) for cell in cells)
    numbers = set(_HEADING.findall(sources))
    if numbers & {task.number for task in tasks}:
        return
    if numbers:
        got = f"the exercise of task {min(numbers)}"
    elif any("question" in tags_of(cell) for cell in cells):
        got = "a lesson"
    elif any(re.search(rf"^(def|class) {task.name}\b", sources, re.MULTILINE) for task in tasks):
        return  # the learner has deleted the headings
    else:
        got = "none of its tasks"
    raise BadInput(
        f"Another notebook: the exercise {paths.stem} is expected (got {got}). "
        "Ask for the exercise."
    )
