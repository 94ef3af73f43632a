"""
The columns of the class board: one for each section with a prediction, and one for each task.
"""

import html
import re

from ddp_lessons.checks.kit.task_registry import all_tasks, stem_of
from ddp_lessons.course.classroom.board.columns import Column
from ddp_lessons.course.notebooks.cell_roles import numbered, role_of
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks, find_course
from ddp_lessons.course.notebooks.text_twins import read_twin

_PREDICT = re.compile(r'predict\("([^"]+)"')
_MARKS = re.compile(r"(\*\*|\*|`)(\S.*?)\1")  # bold, slanted, and code
_MORE = "More: "


def columns(course=None):
    """
    Return the Columns of the course: lesson by lesson, its sections and then its tasks.

    Args:
        course: Path of the course's folder; default: the one that `find_course` finds.
    """
    found = [*sections(course), *_tasks()]
    return sorted(found, key=lambda one: (one.stem, one.kind, one.label))


def sections(course=None):
    """
    Return a Column for each section of the lessons that asks for a prediction.

    Args:
        course: Path of the course's folder; default: the one that `find_course` finds.
    """
    found = []
    for paths in all_notebooks(course or find_course()):
        if paths.is_lesson and paths.text.is_file():
            found += _sections_of(paths.stem, read_twin(paths.text))
    return found


def _sections_of(stem, lesson):
    found, heading, question, number = [], "", "", 0
    for _, cell in numbered(lesson):
        role, source = role_of(cell), cell["source"]
        if role == "question":
            heading = source.lstrip("# ").splitlines()[0].removeprefix(_MORE)
            heading = heading[:1].upper() + heading[1:]
            number += 1
        elif role == "predict" and cell["cell_type"] == "markdown":
            question = html.unescape(_MARKS.sub(r"\2", " ".join(source.split())))
        elif role == "predict" and (name := _PREDICT.search(source)):
            label = f"{stem.partition('_')[0]}/{number}"
            found.append(Column("section", name[1], stem, label, heading, question))
    return found


def _tasks():
    return [
        Column("task", number, stem_of(task), number, task.name, hints=task.all_hints)
        for number, task in all_tasks().items()
    ]
