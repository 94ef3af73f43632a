"""
The check of all submissions in a folder: each notebook runs in isolation, two at a time.

    FOLDER/<learner>/.../02_collectives.ipynb    a folder for each learner, as an LMS exports it
    FOLDER/exercises/02_collectives.ipynb        one learner's copy of the course, as in a CI job
    FOLDER/02_collectives.ipynb                  one learner's exercises
"""

import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ddp_lessons.course.building.verify import nbval_environment
from ddp_lessons.course.classroom.board import state_files
from ddp_lessons.course.classroom.board.columns import Row
from ddp_lessons.course.learner import exercises
from ddp_lessons.course.learner.limited_run import Limits
from ddp_lessons.errors import BadInput
from ddp_lessons.progress import state

NUM_AT_ONCE = 2
_NOT_HANDED_IN = {".ipynb_checkpoints", "solutions", "notebooks"}


@dataclass(frozen=True)
class Submission:
    """
    One learner's notebook of one exercise.

    Args:
        learner: Name of the learner's folder.
        paths: The NotebookPaths of the exercise in the course.
        path: Path of the learner's notebook.
    """

    learner: str
    paths: object
    path: Path


@dataclass(frozen=True)
class Checked:
    """
    The result of a submission's check.

    Args:
        submission: The Submission.
        results: List with a Result for each task of the exercise.
        seconds: Duration of the check.
        at_s: Time at which the check ended, in seconds since 1970.
    """

    submission: Submission
    results: list
    seconds: float
    at_s: float


def find(folder, stem=None):
    """
    Return the Submissions in a folder, by learner and exercise.

    Args:
        folder: Path of one learner's folder, or of a folder that holds one for each learner.
        stem: One exercise, such as "02_collectives" or "02"; None for all exercises.

    Raises:
        BadInput: The folder holds no submission.
    """
    folder = Path(folder).resolve()
    all_paths = [exercises.find_exercise(stem)] if stem else exercises.all_exercises()
    names = {paths.blank.name: paths for paths in all_paths}
    found = _notebooks(names, (folder, folder / "exercises"))
    if found:
        return _submissions(folder.name, found, names)
    submissions = []
    for one in sorted(path for path in folder.glob("*") if path.is_dir()):
        below = [path for path in one.rglob("*.ipynb") if _is_handed_in(path.relative_to(one))]
        folders = sorted({path.parent for path in below}, key=lambda path: len(path.parts))
        submissions += _submissions(one.name, _notebooks(names, folders), names)
    if not submissions:
        raise BadInput(
            f"Nothing was handed in: expected notebooks such as {min(names)} in the folder, or in "
            f"a folder for each learner (got {folder}). Name the folder that holds them."
        )
    return submissions


def check_all(submissions, limits=None, say=lambda checked: None):
    """
    Check submissions in isolation, two at a time, and leave none of their processes running.

    Args:
        submissions: List of Submissions.
        limits: The Limits of each submission; default: `Limits()`.
        say: Function that is called with each Checked when its check has ended.

    Returns:
        list[Checked]: In the order of the submissions.
    """
    is_over = threading.Event()

    def check(submission):
        checked = _check(submission, limits or Limits(), is_over.is_set)
        say(checked)
        return checked

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        try:
            return list(pool.map(check, submissions))
        except BaseException:  # mostly Ctrl-C: end the other checks, too
            is_over.set()
            pool.shutdown(cancel_futures=True)
            raise


def rows(checked):
    """
    Return a Row for each learner, for the board and its CSV table.

    Args:
        checked: List of Checked (see `check_all`).
    """
    found: dict = {}
    for one in checked:
        row = found.setdefault(
            one.submission.learner,
            Row(one.submission.learner, state.blank(), heard_s=one.at_s, is_live=False),
        )
        for result in one.results:
            at_s, has_tried = round(one.at_s), result.mistake != "blank"
            made = {"at_s": at_s, "mistake": None if result.is_solved else result.mistake}
            row.state["tasks"][result.task.number] = {
                "checks": int(has_tried),
                "is_passed": result.is_solved,
                "hints": 0,
                "tries": [made] if has_tried else [],
                "hint_s": None,
                "solved_s": at_s if result.is_solved else None,
            }
    return list(found.values())


def _check(submission, limits, is_over):
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ddp-lessons-") as name:
        # Run a copy: the submission stays unchanged, and two checks do not share a folder.
        scratch = Path(name)
        path = scratch / submission.path.name
        shutil.copyfile(submission.path, path)
        env = nbval_environment() | {state.FOLDER_VARIABLE: str(scratch / "state")}
        apart = exercises.Isolation(limits, env, scratch / "said", is_over)
        try:
            results = exercises.check_notebook(path, submission.paths, apart)
        except BadInput as error:
            tasks = exercises.tasks_of_stem(submission.paths.stem)
            results = [exercises.Result(task, False, str(error), "unreadable") for task in tasks]
        noted = state_files.state_in(scratch / "state" / "progress.json") or state.blank()
    results = [_with_mistake(one, noted["tasks"]) for one in results]
    return Checked(submission, results, time.monotonic() - started, time.time())


def _with_mistake(result, noted):
    # The state file of this run names the mistake. Only the run itself says if a task is solved.
    tries = noted.get(result.task.number, {}).get("tries")
    if result.is_solved or result.mistake or not tries:
        return result
    return exercises.Result(result.task, False, result.told, tries[-1]["mistake"] or "")


def _is_handed_in(path):
    return not any(part.startswith(".") or part in _NOT_HANDED_IN for part in path.parts[:-1])


def _notebooks(names, folders):
    """
    Return {file name: path} of the exercises in some folders; the first folder that has it wins.
    """
    found: dict = {}
    for one in folders:
        for name, paths in names.items():
            path = one / name
            if name not in found and path.is_file() and _is_exercise(path, paths):
                found[name] = path
    return found


def _is_exercise(path, paths):
    # A lesson's notebook has the same file name.
    text = path.read_text(encoding="utf-8", errors="replace")
    return any(f"check.{task.name}(" in text for task in exercises.tasks_of_stem(paths.stem))


def _submissions(learner, found, names):
    return [Submission(learner, names[name], path) for name, path in sorted(found.items())]
