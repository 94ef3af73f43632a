"""
The submissions in a folder: one for each learner and exercise, also where nothing was handed in.

    FOLDER/<learner>/.../02_collectives.ipynb    a folder for each learner, as an LMS exports it
    FOLDER/exercises/02_collectives.ipynb        one learner's copy of the course, as in a CI job
    FOLDER/02_collectives.ipynb                  one learner's exercises
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ddp_lessons.course.learner import exercises
from ddp_lessons.errors import BadInput

MOST_BYTES = 16 * 2**20
"""
Size of the largest notebook that is read.
"""
_NOT_HANDED_IN = {".ipynb_checkpoints", "solutions", "notebooks"}
_COPY = r"[ _.-]*(\(\d+\)|copy *(\(?\d+\)?)?|\d+)?"
"""
The endings of a second copy's name, by browsers, JupyterLab and people: " (1)", "-Copy1", "_2".
"""
_MOST_NAMED = 4


@dataclass(frozen=True)
class Submission:
    """
    The notebook that one learner has handed in for one exercise, or the reason why there is none.

    Args:
        learner: Name of the learner's folder, or from the roster.
        paths: The NotebookPaths of the exercise in the course.
        path: Path of the learner's notebook; None if there is none that can be read.
        fault: Text that says why there is none, "" if there is one.
        mistake: "blank" if nothing was handed in, "unreadable" if it cannot be read, else "".
        note: Text about the choice between several notebooks, or "".
    """

    learner: str
    paths: object
    path: Path | None
    fault: str = ""
    mistake: str = ""
    note: str = ""


def find(folder, stem=None, roster=()):
    """
    Return the Submissions in a folder, by learner and exercise.

    In a folder with a folder for each learner, every learner has one Submission for each exercise:
    the named one, or each that anybody has handed in.

    Args:
        folder: Path of one learner's folder, or of a folder that holds one for each learner.
        stem: One exercise, such as "02_collectives" or "02"; None for all exercises.
        roster: Names of learners who have one Submission for each exercise, too, if the folder has
            no folder of theirs.

    Raises:
        BadInput: The folder holds no notebook of the course.
    """
    folder = Path(folder).resolve()
    known = exercises.all_exercises()
    wanted = [exercises.find_exercise(stem)] if stem else known
    own = _files((folder, folder / "exercises"))
    if not roster and _is_any_in(own, known):
        learners = {folder.name: own}
        wanted = [paths for paths in wanted if _candidates(own, paths)]
    else:
        learners = {name: [] for name in roster}
        for one in filter(Path.is_dir, sorted(folder.glob("[!.]*"))):
            learners[one.name] = _files_below(one)
        if not stem:
            everything = [file for files in learners.values() for file in files]
            wanted = [paths for paths in wanted if _candidates(everything, paths)]
    everything = [file for files in learners.values() for file in files]
    if not wanted or not _is_any_in(everything, known):
        expected = exercises.find_exercise(stem or "00").blank.name
        raise BadInput(
            f"Nothing was handed in: expected notebooks such as {expected} in the folder, or in "
            f"a folder for each learner (got {folder}). Name the folder that holds them."
        )
    return [
        _submission(learner, files, paths)
        for learner, files in sorted(learners.items())
        for paths in wanted
    ]


def read_roster(path):
    """
    Return the names in a roster: a text file with one name a line.

    Args:
        path: The file. Empty lines, and what follows a space or a comma, are ignored, so that a
            list of names and passwords is a roster, too.

    Raises:
        BadInput: The file cannot be read, or holds no name.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BadInput(
            f"No roster: expected a text file with one name a line (got {path}: "
            f"{type(error).__name__}). Name another file."
        ) from error
    names = [re.split(r"[\s,]", line.strip())[0] for line in lines if line.strip()]
    if not names or any("/" in name or name.startswith(".") for name in names):
        raise BadInput(
            f"No roster: expected one name a line, as folders are named (got {path}, with "
            f"{len(names)} names). Correct the file."
        )
    return list(dict.fromkeys(names))


def shown(name):
    """
    Return a file's name as a terminal and a page can show it, whatever characters it has.
    """
    return name if name.isprintable() else ascii(name)


def _submission(learner, files, paths):
    found = _candidates(files, paths)
    if not found:
        return Submission(learner, paths, None, _missing(files, paths), "blank")
    # The newest copy is the one that the learner saved last.
    path, *others = sorted(found, key=lambda one: (-one.lstat().st_mtime, len(one.name), one.name))
    note = ""
    if others:
        left = ", ".join(sorted(shown(one.name) for one in others))
        note = f"{shown(path.name)} counts, because it is the newest one, and not: {left}"
    fault = _unreadable(path)
    if fault:
        return Submission(learner, paths, None, fault, "unreadable", note)
    return Submission(learner, paths, path, note=note)


def _missing(files, paths):
    got = sorted(shown(file.name) for file in files)
    named = ", ".join(got[:_MOST_NAMED]) + (", ..." if len(got) > _MOST_NAMED else "")
    step = "Ask for the notebook."
    if any(name.lower().endswith((".zip", ".tar", ".gz", ".tgz", ".7z")) for name in got):
        step = "Unpack the archive into the learner's folder, and check again."
    return (
        f"Nothing was handed in: {paths.blank.name} is expected (got {named or 'no file'}). {step}"
    )


def _unreadable(path):
    if path.is_symlink() or not path.is_file():
        return f"Not read: a file is expected (got a link or a folder, {path.name})."
    if path.stat().st_size > MOST_BYTES:
        size = path.stat().st_size / 2**20
        return f"Not read: at most {MOST_BYTES >> 20} MiB are expected (got {size:.1f} MiB)."
    return ""


def _candidates(files, paths):
    # A name such as "02_collectives.kept-1" or ".new" is an older answer, or the course's own file.
    pattern = re.compile(re.escape(paths.stem) + _COPY, re.IGNORECASE)
    return [
        file
        for file in files
        if file.suffix.lower() == ".ipynb" and pattern.fullmatch(file.stem.strip())
    ]


def _is_any_in(files, all_paths):
    return any(_candidates(files, paths) for paths in all_paths)


def _files(folders):
    return [path for one in folders if one.is_dir() for path in sorted(one.iterdir())]


def _files_below(folder):
    return [
        path
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or not path.is_dir())
        and not any(
            part.startswith(".") or part in _NOT_HANDED_IN
            for part in path.relative_to(folder).parts[:-1]
        )
    ]
