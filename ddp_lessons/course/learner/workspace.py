"""
The learner's folder: a copy of the course, in which edited files are never overwritten.

    my-course/README.md
    my-course/notebooks/    the lessons; `sources` in it is a link to this package's code
    my-course/exercises/    the exercises, to be solved

A hidden file has a digest of each file that the learner was given, so an update can tell an edited
file from one that was only run. An edited file stays unchanged, and the course's new version of it
is written into another file beside it.
"""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

from ddp_lessons import __version__
from ddp_lessons.course.notebooks.canonical import dumps
from ddp_lessons.course.notebooks.notebook_paths import (
    all_notebooks,
    find_course,
    is_installed,
)
from ddp_lessons.course.notebooks.starters import blank_to_open
from ddp_lessons.errors import BadInput
from ddp_lessons.files import replace_text
from ddp_lessons.ranks.system.version_check import NOTES

NAME = "my-course"
EXERCISES_VARIABLE = "DDP_LESSONS_EXERCISES"
"""
The variable that is "elsewhere" if learners get their exercises in another way, as from nbgrader.
"""
_PACKAGE = Path(__file__).resolve().parents[2]
_SOURCES = "sources"
_FEW = 4
_README = Path(__file__).parent / "workspace.md"


@dataclass
class Update:
    """
    The changes that an update made in a learner's folder. File names are paths inside the folder.

    Args:
        new: List of files that were missing.
        renewed: List of files without edits that were replaced by their new version.
        beside: Dict from an edited file to the file beside it with the course's new version.
    """

    new: list = field(default_factory=list)
    renewed: list = field(default_factory=list)
    beside: dict = field(default_factory=dict)

    def __str__(self):
        lines = []
        if self.new:
            lines.append(f"new: {_few(self.new)}")
        if self.renewed:
            lines.append(f"brought up to date: {_few(self.renewed)}")
        lines += [
            f"{mine}: yours is kept, the new one is {new}" for mine, new in self.beside.items()
        ]
        return "\n".join(lines)


def _few(names):
    return ", ".join(names) if len(names) <= _FEW else f"{len(names)} files"


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
        return _update(folder, _files(course, folder))
    except OSError as error:
        raise BadInput(
            f"Cannot write there: expected a folder of your own (got {folder}: {error.strerror}). "
            "Name another."
        ) from error


def _update(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    notes = _read_notes(folder)
    given, offered, done = notes["given"], notes["offered"], Update()
    for name, text in files.items():
        path, digest = folder / name, _digest(name, text)
        there = _digest_of(path)
        if there is None:
            replace_text(path, text)
            done.new.append(name)
        elif there not in (digest, given.get(name)):  # edited
            if digest not in (given.get(name), offered.get(name)):
                beside = _free_name_beside(path)
                replace_text(beside, text)
                offered[name] = digest
                done.beside[name] = beside.relative_to(folder).as_posix()
            continue
        elif there != digest:  # not edited, and older than the course's version
            replace_text(path, text)
            done.renewed.append(name)
        given[name] = digest
    _link_sources(folder / "notebooks" / _SOURCES)
    noted = {**notes, "version": __version__}
    replace_text(folder / NOTES, json.dumps(noted, indent=1, sort_keys=True) + "\n")
    return done


def _files(course, folder):
    """
    Return {path in a learner's folder: text of the file} for all files of the course.
    """
    files = {"README.md": _README.read_text(encoding="utf-8")}
    for path in sorted((course / "notebooks").glob("*.md")):
        files[path.relative_to(course).as_posix()] = path.read_text(encoding="utf-8")
    has_exercises = os.environ.get(EXERCISES_VARIABLE) != "elsewhere"
    for paths in all_notebooks(course):
        if not (paths.is_lesson or has_exercises):
            continue
        blank = blank_to_open(paths, folder / paths.blank.relative_to(course))
        if paths.is_lesson:
            for cell in blank["cells"]:
                cell["source"] = cell["source"].replace("](../ddp_lessons/", f"]({_SOURCES}/")
        files[paths.blank.relative_to(course).as_posix()] = dumps(blank)
    return files


def _digest_of(path):
    try:
        return _digest(path.name, path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return "no text"


def _digest(name, text):
    """
    Return a digest of a file's text; for a notebook, of its cells without their outputs.
    """
    if name.endswith(".ipynb"):
        with suppress(ValueError, KeyError, AttributeError):  # not a notebook: use the text itself
            cells = nbformat.reads(text, as_version=4)["cells"]
            text = json.dumps([(cell["cell_type"], cell["source"]) for cell in cells])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_notes(folder):
    try:
        notes = json.loads((folder / NOTES).read_text(encoding="utf-8"))
        return {"given": dict(notes["given"]), "offered": dict(notes["offered"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {"given": {}, "offered": {}}  # then each file that differs counts as edited


def _free_name_beside(path):
    number = 1
    while True:
        ending = ".new" if number == 1 else f".new-{number}"
        beside = path.with_name(f"{path.stem}{ending}{path.suffix}")
        if not beside.exists():
            return beside
        number += 1


def _link_sources(link):
    # Lessons link to the code that they call. A symbolic link is always up to date.
    if link.is_symlink() and link.resolve() != _PACKAGE:
        link.unlink()
    if not link.exists():
        with suppress(
            OSError
        ):  # a file system without symbolic links: the lessons' links to code fail
            link.symlink_to(_PACKAGE, target_is_directory=True)
