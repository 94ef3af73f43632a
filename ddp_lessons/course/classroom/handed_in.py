"""
The submissions in a folder: one for each learner and exercise, also where nothing was handed in.

    FOLDER/<learner>/.../02_collectives.ipynb    a folder for each learner, as an LMS exports it
    FOLDER/exercises/02_collectives.ipynb        one learner's copy of the course, as in a CI job
    FOLDER/02_collectives.ipynb                  one learner's exercises
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ddp_lessons.course.classroom import home_files, judged_notebook, learner_files
from ddp_lessons.course.classroom.learner_files import LearnerFiles, shown
from ddp_lessons.course.learner import exercises
from ddp_lessons.errors import BadInput

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
        is_unread: Whether this user may not read some folder or file of the learner's.
    """

    learner: str
    paths: object
    path: Path | None
    fault: str = ""
    mistake: str = ""
    note: str = ""
    is_unread: bool = False


def find(folder, stem=None, roster=(), say=lambda line: None):
    """
    Return the Submissions in a folder, by learner and exercise.

    In a folder with a folder for each learner, every learner has one Submission for each exercise:
    the named one, or each that at least one learner has begun.

    Args:
        folder: Path of one learner's folder, or of a folder that holds one for each learner.
        stem: One exercise, such as "02_collectives" or "02"; None for all exercises.
        roster: Names of learners who have one Submission for each exercise, too, if the folder has
            no folder of theirs.
        say: Function that is called with a line about files and exercises that are left out.

    Raises:
        BadInput: The folder cannot be read, or holds no notebook of the course.
    """
    folder = Path(folder).resolve()
    try:
        return _find(folder, stem, roster, say)
    except OSError as error:
        raise learner_files.refusal(error) from error


def _find(folder, stem, roster, say):
    known = exercises.all_exercises()
    wanted = [exercises.find_exercise(stem)] if stem else known
    own = LearnerFiles(folder.name, learner_files.files_in((folder, folder / "exercises")), [])
    at_top = [file for paths in known for file in _candidates(own.files, paths)]
    folders = {path.name: path for path in learner_files.folders_in(folder)}
    is_course = folders.keys() >= {"exercises", "notebooks"}
    # Beside exercises, these two folders are those of a copy of the course, and no learners'.
    not_learners = {"exercises", "notebooks"} if at_top else set()
    learners = [
        learner_files.learner_in(path) for name, path in folders.items() if name not in not_learners
    ]
    others = [one.name for one in learners if _is_any_in(one.files, known)]
    is_class = others or any(one.errors for one in learners)
    if at_top and not roster and (is_course or not is_class):
        if others:
            say(f"Left out: {_few(others)}, with exercises, too. To check one, name its path.")
        learners = [own]
        wanted = [paths for paths in wanted if _candidates(own.files, paths)]
    else:
        if at_top:
            names = {file.name if file.parent == folder else "exercises/" for file in at_top}
            say(
                f"Left out: {_few(sorted(names))} at the top of {folder}, where each learner has a "
                "folder. Move it into its learner's."
            )
        missing = set(roster) - folders.keys()
        learners += [LearnerFiles(name, [], []) for name in missing]
        learners.sort(key=lambda one: one.name)
        if not stem:
            wanted = _begun_exercises(folder, learners, say)
    if not learners or not wanted:
        raise _nothing_there(folder, stem)
    return [_submission(one, paths) for one in learners for paths in wanted]


def _begun_exercises(folder, learners, say):
    """
    Return the NotebookPaths of the exercises that at least one learner has begun.

    A learner of a hub has all exercises, and a day is enough for three.
    """
    files = [file for one in learners for file in one.files]
    there = [paths for paths in exercises.all_exercises() if _candidates(files, paths)]
    begun = [
        paths for paths in there if any(_is_begun(_submission(one, paths)) for one in learners)
    ]
    errors = [error for one in learners for error in one.errors]
    if errors and not begun:
        raise learner_files.refusal(errors[0])
    if not there:
        raise _nothing_there(folder)
    if not begun:
        raise BadInput(
            f"Nothing was begun: an answer in one exercise or more is expected (got {len(there)} "
            f"exercises as the course has made them, in {folder}). Name an exercise: then every "
            "learner has a row."
        )
    if num_left_out := len(there) - len(begun):
        say(f"Exercises without a row, because no learner has begun them: {num_left_out}.")
    return begun


def _is_begun(submission):
    if submission.path is None:
        return submission.mistake != "blank" and not submission.is_unread
    try:
        return judged_notebook.make(submission.path, submission.paths).is_begun
    except Exception:  # whatever a learner has written: the check of it says what is wrong
        return True


def _nothing_there(folder, stem=None):
    expected = exercises.find_exercise(stem or "00").blank.name
    return BadInput(
        f"Nothing was handed in: expected notebooks such as {expected} in the folder, or in "
        f"a folder for each learner (got {folder}). Name the folder that holds them. If it is this "
        "one, name an exercise: then each folder in it has a row with what is there."
    )


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


def _submission(learner, paths):
    found = _candidates(learner.files, paths)
    unread = learner_files.no_access(learner.errors[0]) if learner.errors else ""
    if not found and unread:
        fault = f"{unread} {learner_files.NEXT_STEP}"
        return Submission(learner.name, paths, None, fault, "unreadable", is_unread=True)
    if not found:
        return Submission(learner.name, paths, None, _missing(learner.files, paths), "blank")
    # The newest copy is the one that the learner saved last.
    path, *others = sorted(
        found, key=lambda one: (-learner_files.saved_s(one), len(one.name), one.name)
    )
    notes = [unread] if unread else []
    if others:
        left = ", ".join(sorted(shown(one.name) for one in others))
        notes += [f"{shown(path.name)} counts, because it is the newest one, and not: {left}"]
    note, is_unread = " ".join(notes), bool(unread)
    try:
        fault = learner_files.reason_not_to_read(path)
    except OSError as error:
        fault, is_unread = str(learner_files.refusal(error)), True
    if fault:
        return Submission(learner.name, paths, None, fault, "unreadable", note, is_unread)
    return Submission(learner.name, paths, path, note=note, is_unread=is_unread)


def _missing(files, paths):
    got = sorted(file.name for file in files)
    step = "Ask for the notebook."
    if any(name.lower().endswith(home_files.ARCHIVES) for name in got):
        step = "Unpack the archive into the learner's folder, and check again."
    named = _few(got) or "no file"
    return f"Nothing was handed in: {paths.blank.name} is expected (got {named}). {step}"


def _candidates(files, paths):
    # A name such as "02_collectives.kept-1" or ".new" is an older answer, or the course's own file.
    pattern = re.compile(re.escape(paths.stem) + _COPY, re.IGNORECASE)
    return [
        file
        for file in files
        if file.suffix.lower() == ".ipynb" and pattern.fullmatch(file.stem.strip())
    ]


def _few(names):
    few = list(map(shown, names[:_MOST_NAMED]))
    return ", ".join(few + ["..."] * (len(names) > _MOST_NAMED))


def _is_any_in(files, all_paths):
    return any(_candidates(files, paths) for paths in all_paths)
