"""
The check of all submissions in a folder: each runs in isolation, two at a time.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ddp_lessons.course.building.verify import nbval_environment
from ddp_lessons.course.classroom import answers_user, judged_notebook
from ddp_lessons.course.classroom.board import state_files
from ddp_lessons.course.classroom.board.columns import Row
from ddp_lessons.course.classroom.handed_in import Submission
from ddp_lessons.course.learner import exercises, notebook_runs
from ddp_lessons.course.learner.limited_run import Limits
from ddp_lessons.course.notebooks.canonical import dumps
from ddp_lessons.errors import BadInput
from ddp_lessons.files import replace_text
from ddp_lessons.progress import state

NUM_AT_ONCE = 2
NOT_BEGUN = "Nothing was written into it: its answers are the gaps that the course has left."
_HOMES = ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


@dataclass(frozen=True)
class Checked:
    """
    The result of a submission's check.

    Args:
        submission: The Submission.
        results: List with a Result for each task of the exercise.
        seconds: Duration of the check.
        at_s: Time at which the check ended, in seconds since 1970.
        answers: Dict from a task's number to the learner's cells that were judged.
    """

    submission: Submission
    results: list
    seconds: float
    at_s: float
    answers: dict = field(default_factory=dict)

    @property
    def is_begun(self):
        """
        Whether the learner has handed in something for this exercise.
        """
        return self.submission.mistake != "blank" and self.results[0].message != NOT_BEGUN


def check_all(submissions, limits=None, say=lambda checked: None, hidden=()):
    """
    Check submissions in isolation, two at a time, and leave none of their processes running.

    If this process is root's, each runs as a user without rights (see `answers_user`).

    Args:
        submissions: List of Submissions.
        limits: The Limits of each submission; default: `Limits()`.
        say: Function that is called with each Checked when its check has ended.
        hidden: Paths of files and folders that no submission may see, if it runs as another user.

    Returns:
        list[Checked]: In the order of the submissions.

    Raises:
        BadInput: This process is root's, and no user without rights can run answers.
    """
    is_over, user = threading.Event(), answers_user.find_user()
    if user:
        answers_user.refuse_unusable(user)
    room = _Room(limits or Limits(), is_over.is_set, user, tuple(hidden))

    def check(submission):
        checked = _check(submission, room)
        if not is_over.is_set():  # else it was ended early, and judges nothing
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
                "solved_version": result.task.changed_in if result.is_solved else None,
            }
    return list(found.values())


@dataclass(frozen=True)
class _Room:
    # The settings that all submissions of a folder share.
    limits: Limits
    is_over: Callable
    user: object
    hidden: tuple


def _check(submission, room):
    started = time.monotonic()
    try:
        results, answers = _judge(submission, room)
    except BadInput as error:
        results, answers = _all_open(submission, str(error), "unreadable"), {}
    except Exception as error:  # whatever a learner has written, the others are judged, too
        told = f"It could not be judged: a notebook of JupyterLab is expected (got {error!r:.200})."
        results, answers = _all_open(submission, told, "unreadable"), {}
    return Checked(submission, results, time.monotonic() - started, time.time(), answers)


def _judge(submission, room):
    """
    Return the Results of a submission, and the learner's cells for each task.
    """
    if submission.path is None:
        return _all_open(submission, submission.fault, submission.mistake), {}
    judged = judged_notebook.make(submission.path, submission.paths)
    if not judged.is_begun:  # a learner of a hub has all exercises, and has opened few of them
        return _all_open(submission, NOT_BEGUN, "blank"), judged.answers
    with tempfile.TemporaryDirectory(prefix="ddp-lessons-", ignore_cleanup_errors=True) as name:
        # Two places: the notebook's own, and one that no code of the notebook can write to.
        own, output = Path(os.path.realpath(name)) / "own", Path(name) / "output"
        path = own / submission.paths.blank.name
        replace_text(path, dumps(judged.notebook))
        apart = _isolation(own, output, room)
        message_by_cell, fault = notebook_runs.run_notebook(path, apart)
        noted = _noted(own)
    if fault:
        return _all_open(submission, room.limits.words(fault), f"too-much-{fault}"), judged.answers
    results = [
        _with_mistake(exercises.result_of(task, message_by_cell, judged.checks[task.number]), noted)
        for task in exercises.tasks_of_stem(submission.paths.stem)
    ]
    return results, judged.answers


def _isolation(own, output, room):
    env = nbval_environment() | {state.FOLDER_VARIABLE: str(own / "state")}
    if room.user is None:
        return notebook_runs.Isolation(room.limits, env, own, output, room.is_over)
    another = answers_user.AnswersRoom(room.user, own, room.hidden)
    another.give()
    env = {name: value for name, value in env.items() if name not in _HOMES}
    env |= {"HOME": str(own), "TMPDIR": "/tmp", "USER": room.user.pw_name}
    return notebook_runs.Isolation(room.limits, env, own, output, room.is_over, another.command)


def _noted(own):
    path = own / "state" / "progress.json"
    is_link = os.path.realpath(path) != str(
        path
    )  # made by the notebook's own code, to have it read
    return (None if is_link else state_files.state_in(path)) or state.blank()


def _all_open(submission, told, mistake):
    tasks = exercises.tasks_of_stem(submission.paths.stem)
    return [exercises.Result(task, False, told, mistake) for task in tasks]


def _with_mistake(result, noted):
    # The state file of this run names the mistake. Only the run itself says if a task is solved.
    tries = noted["tasks"].get(result.task.number, {}).get("tries")
    if result.is_solved or not tries:
        return result
    return exercises.Result(result.task, False, result.message, tries[-1]["mistake"] or "")
