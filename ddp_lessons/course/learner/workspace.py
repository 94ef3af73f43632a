"""
The learner's folder: a copy of the course, in which edited files are never overwritten.

    my-course/README.md
    my-course/notebooks/    the lessons; `sources` in it is a link to this package's code
    my-course/exercises/    the exercises, to be solved

A hidden file has a digest of each file that the learner was given, so an update can tell an edited
file from one that was only run. `progress/renewal.py` says which changes count as edits.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from ddp_lessons import __version__
from ddp_lessons.course.notebooks.canonical import dumps
from ddp_lessons.course.notebooks.notebook_paths import (
    all_notebooks,
    find_course,
    is_installed,
    published_folder,
)
from ddp_lessons.course.notebooks.starters import blank_to_open
from ddp_lessons.errors import BadInput
from ddp_lessons.progress.renewal import NOTES, read_notes, renew

NAME = "my-course"
EXERCISES_VARIABLE = "DDP_LESSONS_EXERCISES"
"""
The variable that is "elsewhere" if learners get their exercises in another way, as from nbgrader.
"""
_PACKAGE = Path(__file__).resolve().parents[2]
_SOURCES = "sources"
_ELSEWHERE = re.compile(r"\[[^\]]+\]\(\.\./((?:docs|scripts)/[^)#]+)[^)]*\)")
"""
A link to a file that learners do not get. They are told its path.
"""
_README = Path(__file__).parent / "workspace.md"


def enclosing(start=None):
    """
    Return the learner's folder that is, or encloses, a given folder; None if there is none.

    Args:
        start: Path of the given folder; the current one if None.
    """
    start = Path(start or Path.cwd()).resolve()
    return next((folder for folder in (start, *start.parents) if (folder / NOTES).is_file()), None)


def usual_folder():
    """
    Return the learner's folder to use if a command names none.

    It is the one that encloses the current folder, or an existing `my-course` in the current
    folder, as in a home on a hub. Otherwise it is `my-course` in the clone of the course, or in the
    current folder if the course was installed with the package.
    """
    course = find_course()
    own = enclosing() or enclosing(Path.cwd() / NAME)
    return own or (Path.cwd() if is_installed(course) else course) / NAME


def update(folder, course):
    """
    Bring a learner's folder up to date with the course. Make it if it does not exist.

    Args:
        folder: The learner's folder.
        course: The folder that holds the course.

    Returns:
        Update: The changes that were made.

    Raises:
        BadInput: The folder is a file, or the course itself, or cannot be written to.
    """
    folder = Path(folder)
    if (folder / "notebooks" / "py").exists():
        raise BadInput(
            f"Not a folder of your own: expected one to copy the course into (got the course, "
            f"{folder}). Name another, such as {NAME}."
        )
    try:
        return _update(folder, Path(course))
    except OSError as error:
        raise BadInput(
            f"Cannot write there: expected a folder of your own (got {folder}: {error.strerror}). "
            "Name another."
        ) from error


def _update(folder, course):
    files, published = _files(course, folder), str(published_folder(course))
    folder.mkdir(parents=True, exist_ok=True)
    version = read_notes(folder).get("version")
    done = renew(folder, files, version=__version__, published=published)
    done.changed_tasks += _sentences_about_tasks(done.beside, version)
    _link_sources(folder / "notebooks" / _SOURCES)
    return done


def _sentences_about_tasks(beside, version):
    """
    Return a sentence for each task that asks for something else than when it was answered.

    Args:
        beside: Dict from an edited file to the file beside it with its new version.
        version: Version of the course at the last update of the learner's folder, or None.
    """
    beside = {Path(name).stem: new for name, new in beside.items() if name.startswith("exercises/")}
    if not beside:
        return []
    from ddp_lessons.checks.kit.task_registry import all_tasks, stem_of  # imports torch: seconds

    return [
        f"Task {number} asks for something else since {task.changed_in}: see "
        f"{Path(beside[stem_of(task)]).name}. Your answer stays in {stem_of(task)}.ipynb."
        for number, task in all_tasks().items()
        if stem_of(task) in beside and task.has_changed_since(version)
    ]


def _files(course, folder):
    """
    Return {path in a learner's folder: text of the file} for all files of the course.

    The version of a notebook that a teacher has published is taken in place of the course's own.
    """
    files = {"README.md": _README.read_text(encoding="utf-8")}
    for path in sorted((course / "notebooks").glob("*.md")):
        files[path.relative_to(course).as_posix()] = path.read_text(encoding="utf-8")
    has_exercises = os.environ.get(EXERCISES_VARIABLE) != "elsewhere"
    for paths in all_notebooks(course):
        if not (paths.is_lesson or has_exercises):
            continue
        name = paths.blank.relative_to(course)
        published = published_folder(course) / name
        files[name.as_posix()] = (
            published.read_text(encoding="utf-8")
            if os.path.isfile(published)
            else text_for_learners(paths, folder / name)
        )
    return files


def text_for_learners(paths, path):
    """
    Return the text of a lesson's or an exercise's notebook as learners get it.

    Args:
        paths: The NotebookPaths of the lesson or the exercise.
        path: Path to which the notebook will be written, outside of the course.

    Raises:
        NotebookRefused: A solution's marks are wrong (see `blank_of`).
    """
    blank = blank_to_open(paths, path)
    if paths.is_lesson:
        for cell in blank["cells"]:
            source = cell["source"].replace("](../ddp_lessons/", f"]({_SOURCES}/")
            cell["source"] = _ELSEWHERE.sub(r"`\1` of the course", source)
    return dumps(blank)


def _link_sources(link):
    # Lessons link to the code that they call. A symbolic link is always up to date.
    if link.is_symlink() and link.resolve() != _PACKAGE:
        link.unlink()
    if not link.exists():
        with suppress(
            OSError
        ):  # a file system without symbolic links: the lessons' links to code fail
            link.symlink_to(_PACKAGE, target_is_directory=True)
