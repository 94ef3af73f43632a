"""
Records of a learner's checks, hints and predictions, with times, in the file of `state`.

In a prediction's row, `said` is the number or letter of the last run, or None if the learner left
it open; `first` is the first one, and `before` the last one before the section had run.
"""

import copy
import numbers
import time
from typing import Any

from ddp_lessons.progress import sending, state
from ddp_lessons.progress.row_fields import BLANKS, MOST_TRIES
from ddp_lessons.progress.state import state_file

__all__ = [
    "note_check",
    "note_hint",
    "note_outcome",
    "note_prediction",
    "predictions",
    "row_of",
    "state_file",
]


def row_of(number: str) -> dict[str, Any]:
    """
    Return the row of one task.
    """
    return _row(state.read(), "tasks", number)


def predictions() -> dict[str, dict[str, Any]]:
    """
    Return {name: row} of the predictions that were made.
    """
    rows = state.read()["predictions"]
    return {name: row for name, row in rows.items() if row["first"] is not None}


def note_check(number: str, passed: bool, mistake: str = "", version: str | None = None) -> None:
    """
    Record one check of a task. A task that was passed once stays passed.

    Args:
        number: The task's number, such as "02.1".
        passed: Whether the check passed.
        mistake: Name of the mistake that the check found, or "".
        version: Version of the course since which the task asks what it asks now. It is kept if the
            check passed, because a later version may ask for something else.
    """
    with state.changing() as told:
        row = _row(told, "tasks", number)
        now_s = _now_s()
        row["checks"] += 1
        one = {"at_s": now_s, "mistake": None if passed else mistake}
        row["tries"] = [*row["tries"], one][-MOST_TRIES:]
        if passed and not row["is_passed"]:
            row["solved_s"] = now_s
        if passed:
            row["solved_version"] = version
        row["is_passed"] = row["is_passed"] or passed
    sending.keep_sending()


def note_hint(number: str, num_hints: int) -> int:
    """
    Record that a task's next hint was taken, and return the hint's index, from 0.

    After the last hint, the last hint is taken again.
    """
    with state.changing() as told:
        row = _row(told, "tasks", number)
        place = min(row["hints"], num_hints - 1)
        row["hints"], row["hint_s"] = place + 1, _now_s()
    sending.keep_sending()
    return place


def note_prediction(name: str, prediction: numbers.Real | float | str | None) -> None:
    """
    Record the number or letter that a learner predicts; None leaves it open this time.
    """
    if prediction is None and name not in state.read()["predictions"]:
        return
    with state.changing() as told:
        row = _row(told, "predictions", name)
        row["said"] = _plain(prediction)
        if prediction is not None:
            row["said_s"] = _now_s()
            if row["first"] is None:
                row["first"] = row["said"]
            if row["was"] is None:
                row["before"] = row["said"]
    sending.keep_sending()


def note_outcome(name: str, outcome: numbers.Real | float | str) -> int | float | str | None:
    """
    Record the outcome of a section, and return the learner's prediction, or None.

    The outcome is recorded even without a prediction, so that a teacher sees how far learners are.
    """
    with state.changing() as told:
        row = _row(told, "predictions", name)
        row["was"], row["was_s"] = _plain(outcome), _now_s()
        said = row["said"]
    sending.keep_sending()
    return said


def _row(told, kind, name):
    """
    Return a row of a state, and add a blank row if there is none.
    """
    return told[kind].setdefault(name, copy.deepcopy(BLANKS[kind]))


def _plain(value):
    # JSON has no numbers of NumPy, and no fractions.
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return value if isinstance(value, str) else None


def _now_s():
    return round(time.time())
