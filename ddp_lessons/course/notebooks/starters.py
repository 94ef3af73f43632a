"""
The starter, which a learner opens: a lesson without outputs, or an exercise with gaps.

In a lesson, the answer to a prediction is folded, so that a learner guesses first: the `read` cells
below it in its section, the check, and a cell with the tag `answer` beside its role. JupyterLab
shows three dots in their place. The course's extension for JupyterLab unfolds them when the cell
above them has run; elsewhere a click does.

The text twin of an exercise marks the code that learners write:

    # solution              a separate line in an answer cell, indented like the code
    ...                     the code that the learner writes
    # end of solution

In the starter, one line that raises and names the task replaces the marked part. The signature and
the pseudo-code outside of that part stay. A line of it that begins with "# | " is in the starter,
too, without that mark: such code is wrong on purpose, for learners to repair.
"""

import re

import nbformat

from ddp_lessons.course.notebooks.canonical import canonical, read_notebook
from ddp_lessons.course.notebooks.cell_roles import (
    ANSWER,
    is_explained,
    numbered,
    role_of,
    tags_of,
    text_of,
)
from ddp_lessons.course.notebooks.text_twins import read_twin
from ddp_lessons.errors import NotebookRefused

_BEGIN = "# solution"
_END = "# end of solution"
_WRONG = "# | "
_HEADING = re.compile(r"^## (\d\d\.\d) ", re.MULTILINE)


def blank_of(paths, twin):
    """
    Return the starter: no outputs, no counts, folded answers, and a gap for each solution.

    Args:
        paths: The NotebookPaths of a lesson or an exercise.
        twin: Its text twin as a notebook.

    Raises:
        NotebookRefused: A solution's mark is missing, or is above the first heading of a task.
    """
    if paths.is_lesson:
        return canonical(_fold_answers(twin) if is_explained(twin) else twin, paths.stem)
    notebook = nbformat.from_dict({**twin, "cells": [dict(cell) for cell in twin["cells"]]})
    task = None
    num_gaps = 0
    for number, cell in numbered(notebook):
        if cell["cell_type"] == "markdown":
            headings = _HEADING.findall(cell["source"])
            task = headings[-1] if headings else task
            continue
        where = f"{paths.text.name}, cell {number}, solution"
        cell["source"], gaps = _blank_source(cell["source"], task, where)
        cell["outputs"], cell["execution_count"] = [], None
        num_gaps += gaps
    if not num_gaps:
        raise NotebookRefused(
            f"{paths.text.name}, solution: expected a part between '{_BEGIN}' and '{_END}' "
            "(got none). Mark what learners write."
        )
    return canonical(notebook, paths.stem)


def _fold_answers(lesson):
    folded = nbformat.from_dict({**lesson, "cells": [dict(cell) for cell in lesson["cells"]]})
    is_asked = False
    for cell in folded["cells"]:
        role = role_of(cell)
        if role in ("question", "predict"):
            is_asked = role == "predict"
        elif is_asked and (role in ("read", "check") or ANSWER in tags_of(cell)):
            cell["metadata"] = {**cell["metadata"], "jupyter": {"source_hidden": True}}
    return folded


def read_blank(paths):
    """
    Return the starter, made from the present text twin.

    Args:
        paths: The NotebookPaths of a lesson or an exercise.

    Raises:
        NotebookRefused: A solution's marks are wrong (see `blank_of`).
    """
    return blank_of(paths, read_twin(paths.text))


def blank_to_open(paths, path):
    """
    Return the starter as JupyterLab would save it once it was opened with this Python.

    If a notebook does not contain Python's version, JupyterLab asks to save it even if the learner
    has only looked at it. The course's own starter has no version: it is the same for every Python.

    Args:
        paths: The NotebookPaths of a lesson or an exercise.
        path: Path to which the starter will be written.

    Raises:
        NotebookRefused: A solution's marks are wrong (see `blank_of`).
    """
    from ipykernel.ipkernel import IPythonKernel

    blank = read_blank(paths)
    if path.resolve() != paths.blank.resolve():
        blank["metadata"]["language_info"] = nbformat.from_dict(IPythonKernel.language_info)
    return blank


def _blank_source(source, task, where):
    lines, gaps, is_solution = [], 0, False
    for line in source.splitlines():
        mark = line.strip()
        if mark in (_BEGIN, _END) and is_solution == (mark == _BEGIN):
            raise NotebookRefused(
                f"{where}: expected '{_BEGIN}' and '{_END}' in turns (got '{mark}' again). "
                "Add the other one."
            )
        if mark == _BEGIN:
            if task is None:
                raise NotebookRefused(
                    f"{where}: expected a heading such as '## 02.1 All-reduce' above "
                    "(got none). Say which task it is."
                )
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f'{indent}raise NotImplementedError("Task {task} is still blank")')
            gaps, is_solution = gaps + 1, True
        elif mark == _END:
            is_solution = False
        elif not is_solution:
            lines.append(line)
        elif mark.startswith(_WRONG):
            lines.append(line.replace(_WRONG, "", 1))
    if is_solution:
        raise NotebookRefused(
            f"{where}: expected '{_END}' (got the end of the cell). Add it after the solution."
        )
    return "\n".join(lines), gaps


def is_untouched(path, blank):
    """
    Tell whether a learner's notebook has exactly the starter's cells; outputs may differ.

    Args:
        path: Path of the learner's notebook.
        blank: The starter (see `read_blank`).
    """
    try:
        cells = read_notebook(path)["cells"]
    except NotebookRefused:
        return False
    return [text_of(cell) for cell in cells] == [text_of(cell) for cell in blank["cells"]]
