"""
The paths of the course's notebooks: one lesson id names a text twin and its notebooks.

    notebooks/py/<stem>.py    ->  notebooks/<stem>.ipynb             a lesson, for learners to run
                              ->  notebooks/executed/<stem>.ipynb    the same, with its outputs
    exercises/py/<stem>.py    ->  exercises/<stem>.ipynb             an exercise, to be solved
                              ->  exercises/solutions/<stem>.ipynb   the same, solved
"""

import os
import re
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path, PurePath

from ddp_lessons.errors import BadInput

_FOLDERS = (
    # kind, text twins, notebooks
    ("lesson", "notebooks/py", "notebooks/executed"),
    ("exercise", "exercises/py", "exercises/solutions"),
)
_DISTRIBUTION = "ddp-lessons"
_INSTALLED = "share/ddp-lessons/notebooks/py/00_ranks.py"


@dataclass(frozen=True)
class NotebookPaths:
    """
    The paths of one lesson or exercise of the course.

    Args:
        kind: "lesson" or "exercise". Only a lesson must have its cells in a fixed order.
        stem: The lesson id, which the names of all files share.
        text: The text twin, which people edit.
        notebook: The notebook with its outputs, which `build` writes.
    """

    kind: str
    stem: str
    text: Path
    notebook: Path

    @property
    def is_lesson(self):
        """
        Whether this is a lesson, whose cells must follow the rules of `cell_order`.
        """
        return self.kind == "lesson"

    @property
    def blank(self):
        """
        The path of the starter: no outputs, and gaps in place of an exercise's solutions.
        """
        return self.notebook.parents[1] / self.notebook.name


def find_root(start=None):
    """
    Return the folder that holds the course: `start` or the nearest of its parents that does.

    Args:
        start: Path of the folder to begin at; the current one if None.

    Raises:
        BadInput: Neither that folder nor a parent of it holds `notebooks/py`.
    """
    start = Path(start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "notebooks" / "py").is_dir():
            return folder
    raise BadInput(
        f"No course found: expected a folder that holds notebooks/py (got {start}). "
        "Go to the course's folder, or name it with --root."
    )


def find_course(start=None):
    """
    Find the course: in a folder or above it, else in the clone or the wheel of this package.

    Args:
        start: Path of the folder to begin at; the current one if None.

    Returns:
        Path: The folder that holds the course: a clone, or the files installed with the package.

    Raises:
        BadInput: No course was found.
    """
    start = Path(start or Path.cwd()).resolve()
    # The folder to begin at wins: one environment may serve several clones.
    for folder in (start, Path(__file__).parent, _installed_course()):
        try:
            return find_root(folder)
        except BadInput:
            continue
    raise BadInput(
        f"The lessons are not here: expected a folder that holds notebooks/py (got {start}). "
        "Change to your clone of the course and run the command again, or install the package anew."
    )


def is_installed(course):
    """
    Tell whether a course was installed with the package, and is not a clone.
    """
    return Path(course) == _installed_course()


def _installed_course():
    # A wheel installs the course beside the packages: see data-files in pyproject.toml.
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.as_posix().endswith(_INSTALLED):
            return Path(str(file.locate())).resolve().parents[2]
    return Path(__file__).parent


def all_notebooks(root):
    """
    Return the NotebookPaths of each text twin or notebook of the course, sorted.

    Args:
        root: The folder that holds the course.
    """
    all_paths = []
    for kind, texts_folder, notebooks_folder in _FOLDERS:
        texts, notebooks = Path(root) / texts_folder, Path(root) / notebooks_folder
        stems = {path.stem for path in texts.glob("*.py")}
        stems |= {path.stem for path in notebooks.glob("*.ipynb")}
        all_paths += [
            NotebookPaths(kind, stem, texts / f"{stem}.py", notebooks / f"{stem}.ipynb")
            for stem in sorted(stems)
        ]
    return all_paths


def published_folder(course):
    """
    Return the folder in which a teacher's edited versions of a course's notebooks are kept.

    It is `<course>-published` beside the course; DDP_LESSONS_PUBLISHED can name another one.

    Args:
        course: Path of the course's folder.
    """
    course = Path(course).resolve()
    own = os.environ.get("DDP_LESSONS_PUBLISHED")
    return Path(own).resolve() if own else course.with_name(f"{course.name}-published")


def moved_to(folder, paths):
    """
    Return NotebookPaths that name the same files in another folder.

    Args:
        folder: Path of the folder.
        paths: The NotebookPaths.
    """
    course = paths.text.parents[2]
    text, notebook = (
        Path(folder) / path.relative_to(course) for path in (paths.text, paths.notebook)
    )
    return replace(paths, text=text, notebook=notebook)


def all_in_force(course):
    """
    Return what `all_notebooks` returns, with the text twins that a teacher has published.

    Args:
        course: Path of the course's folder.
    """
    folder = published_folder(course)
    texts = {paths: moved_to(folder, paths).text for paths in all_notebooks(course)}
    return [
        replace(paths, text=text) if os.path.isfile(text) else paths
        for paths, text in texts.items()
    ]


def with_two_digits(name):
    """
    Return the name of an exercise or a task as it is written: "02" for "2", "02.1" for "2.1".
    """
    return re.sub(r"^\d(?=$|[._])", r"0\g<0>", name)


def choose(root, names=()):
    """
    Return the NotebookPaths that some names mean, or all NotebookPaths without names.

    Args:
        root: The folder that holds the course.
        names: List of names. A lesson id such as "03_ring" means a lesson and its exercise;
            "notebooks/03_ring" means only the lesson, and "exercises/03_ring" only the exercise.
            The path of a text twin or a notebook is a name, too.

    Raises:
        BadInput: A name means nothing, or the course is empty.
    """
    all_paths = all_notebooks(root)
    known = sorted({paths.stem for paths in all_paths})
    unknown = [name for name in names if not any(_means(name, paths) for paths in all_paths)]
    if unknown or not all_paths:
        raise BadInput(
            f"Unknown notebook: expected one of {', '.join(known) or 'none yet'} "
            f"(got {', '.join(unknown) or 'an empty course'}). Name a file of notebooks/py or "
            "exercises/py without its ending, or put notebooks/ or exercises/ before it for one "
            "of the two."
        )
    return [paths for paths in all_paths if not names or any(_means(n, paths) for n in names)]


def _means(name, paths):
    path = PurePath(name)
    folder = paths.blank.parent.name
    return path.stem == paths.stem and (len(path.parts) == 1 or folder in path.parts)
