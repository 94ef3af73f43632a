"""
Note what a learner does: checks, hints, predictions, and when. `state` shows what is written.

Of a prediction, `said` is of the last run, None where it was left open; `first` stays, and `before`
is what was said last before the section had run.
"""

import copy
import numbers
import time

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


def row_of(number):
    """
    Return the row of one task.
    """
    return _row(state.read(), "tasks", number)


def predictions():
    """
    Return {name: row} of the predictions that were made.
    """
    rows = state.read()["predictions"]
    return {name: row for name, row in rows.items() if row["first"] is not None}


def note_check(number, passed, mistake=""):
    """
    Note one check of a task. What was passed once stays passed.

    Args:
        number: The task's.
        passed: Whether it came out.
        mistake: The name of the mistake that it showed.
    """
    with state.changing() as told:
        row = _row(told, "tasks", number)
        now_s = _now_s()
        row["checks"] += 1
        one = {"at_s": now_s, "mistake": None if passed else mistake}
        row["tries"] = [*row["tries"], one][-MOST_TRIES:]
        if passed and not row["is_passed"]:
            row["solved_s"] = now_s
        row["is_passed"] = row["is_passed"] or passed
    sending.keep_sending()


def note_hint(number, num_hints):
    """
    Note that the next of a task's hints is taken, and return its place, from 0.

    After the last one it is the last one again.
    """
    with state.changing() as told:
        row = _row(told, "tasks", number)
        place = min(row["hints"], num_hints - 1)
        row["hints"], row["hint_s"] = place + 1, _now_s()
    sending.keep_sending()
    return place


def note_prediction(name, number):
    """
    Note what a learner says will come out; None if nothing is said this time.
    """
    if number is None and name not in state.read()["predictions"]:
        return
    with state.changing() as told:
        row = _row(told, "predictions", name)
        row["said"] = _plain(number)
        if number is not None:
            row["said_s"] = _now_s()
            if row["first"] is None:
                row["first"] = row["said"]
            if row["was"] is None:
                row["before"] = row["said"]
    sending.keep_sending()


def note_outcome(name, number):
    """
    Note what came out, and return what the learner had said, or None.

    Noted of a question that was left open as well: a teacher sees how far a room has come.
    """
    with state.changing() as told:
        row = _row(told, "predictions", name)
        row["was"], row["was_s"] = _plain(number), _now_s()
        said = row["said"]
    sending.keep_sending()
    return said


def _row(told, kind, name):
    """
    Return a row of a state, put there blank if there is none.
    """
    return told[kind].setdefault(name, copy.deepcopy(BLANKS[kind]))


def _plain(number):
    # As JSON has them: numpy's numbers and fractions are none there.
    if isinstance(number, numbers.Integral):
        return int(number)
    return float(number) if isinstance(number, numbers.Real) else None


def _now_s():
    return round(time.time())
