"""
Make the notebook that learners open: of a lesson without outputs, of an exercise with gaps.

An exercise marks what learners write:

    # solution              a line of its own in an answer cell, indented as the code is
    ...                     what the learner writes
    # end of solution

In the blank, such a part is one line that raises and names the task. What stands outside of it,
the signature and the pseudo-code, stays. Lines of it that begin with "# | " follow without that
mark: code that is wrong on purpose, for learners to mend.
"""

import re

import nbformat

from ddp_lessons.course.notebooks.canonical import canonical, read_notebook
from ddp_lessons.course.notebooks.cell_roles import numbered, text_of
from ddp_lessons.course.notebooks.text_twins import read_twin
from ddp_lessons.errors import NotebookRefused

_BEGIN = "# solution"
_END = "# end of solution"
_WRONG = "# | "
_HEADING = re.compile(r"^## (\d\d\.\d) ", re.MULTILINE)


def blank_of(paths, twin):
    """
    Return the learner's notebook: no outputs, no counts, and a gap in place of each solution.

    Args:
        place: The place of a lesson or an exercise.
        twin: Its text as a notebook.

    Raises:
        NotebookRefused: A marker is missing, or stands before the first heading of a task.
    """
    if paths.is_lesson:
        return canonical(twin, paths.stem)
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


def read_blank(paths):
    """
    Return the learner's notebook, made from its text as it is now.

    Args:
        place: The place of a lesson or an exercise.

    Raises:
        NotebookRefused: As `blank_of`.
    """
    return blank_of(paths, read_twin(paths.text))


def blank_to_open(paths, path):
    """
    Return the learner's notebook as JupyterLab would save it once it was opened with this Python.

    Without the Python's version in it, one that was only looked at asks to be saved. The course's
    own blank is the same under every Python.

    Args:
        place: As `read_blank`.
        path: Where it is to lie.

    Raises:
        NotebookRefused: As `blank_of`.
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
    Tell whether a learner's notebook has the cells of its blank and no others, whatever came out.

    Args:
        path: The learner's file.
        blank: The notebook that `read_blank` returned.
    """
    try:
        cells = read_notebook(path)["cells"]
    except NotebookRefused:
        return False
    return [text_of(cell) for cell in cells] == [text_of(cell) for cell in blank["cells"]]
