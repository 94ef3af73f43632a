"""
The exercises in the form that nbgrader needs: its metadata makes each check cell worth a point.

For nbgrader, a check cell is an "autograder test": the cell is read-only, and gives its point if it
does not raise. Answer cells have no such metadata, so nbgrader does not change them.
"""

from pathlib import Path

from ddp_lessons.course.learner.exercises import all_exercises, tasks_of_stem
from ddp_lessons.course.notebooks.canonical import dumps
from ddp_lessons.course.notebooks.cell_roles import numbered, tags_of
from ddp_lessons.course.notebooks.starters import read_blank
from ddp_lessons.errors import BadInput
from ddp_lessons.files import replace_text

_SCHEMA = 3


def marked(place):
    """
    Return the starter of an exercise with nbgrader's metadata.

    Args:
        place: The NotebookPaths of the exercise.
    """
    notebook = read_blank(place)
    calls = {f"check.{task.name}()": task.number for task in tasks_of_stem(place.stem)}
    for _, cell in numbered(notebook, "code"):
        number = calls.get(cell["source"].strip())
        if number is not None:
            grade_id = f"task-{number.replace('.', '-')}"
            cell["metadata"]["nbgrader"] = _mark(grade_id) | {"grade": True, "points": 1}
        elif "setup" in tags_of(cell):
            cell["metadata"]["nbgrader"] = _mark("setup")
    return notebook


def write_sources(folder, course=None):
    """
    Write the exercises into nbgrader's folder of sources, and return their number.

    Args:
        folder: Path of the nbgrader course; each exercise goes to `source/<exercise>/` in it.
        course: Path of this course's folder; default: the one that `find_course` finds.

    Raises:
        BadInput: One of the files exists already. Nothing was written.
    """
    places = all_exercises(course)
    paths = {Path(folder) / "source" / place.stem / place.blank.name: place for place in places}
    there = [path for path in paths if path.exists()]
    if there:
        raise BadInput(
            f"It is there already: a folder without these exercises is expected (got {there[0]}). "
            "Move it away, or name another folder."
        )
    for path, place in paths.items():
        replace_text(path, dumps(marked(place)))
    return len(paths)


def _mark(grade_id):
    return {
        "grade": False,
        "grade_id": grade_id,
        "locked": True,
        "schema_version": _SCHEMA,
        "solution": False,
        "task": False,
    }
