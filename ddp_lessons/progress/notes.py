"""
What a learner has done so far, in one small file of theirs: tasks by number, predictions by name.

    {"02.1": {"checks": 3, "is_passed": true, "hints": 1},
     "lines": {"said": 1, "first": 1, "was": 4}}

Of a prediction, `said` is of the last run, None where it was left open; `first` stays.
"""

import fcntl
import json
import os
from contextlib import contextmanager, suppress
from pathlib import Path

from ddp_lessons.files import replace_text

_TASK = {"checks": 0, "is_passed": False, "hints": 0}
_PREDICTION: dict = {"said": None, "first": None, "was": None}


def state_file():
    """
    Return the path of the file. DDP_LESSONS_STATE_DIR names another folder for it.
    """
    own = os.environ.get("DDP_LESSONS_STATE_DIR")
    if own:
        return Path(own) / "progress.json"
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ddp-lessons" / "progress.json"


def read_state():
    """
    Return {number of a task or name of a prediction: its row}; empty if the file is damaged.
    """
    try:
        state = json.loads(state_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(state, dict):
        return {}
    return {number: row for number, row in state.items() if isinstance(row, dict)}


def row_of(number):
    """
    Return the row of one task.
    """
    return _TASK | read_state().get(number, {})


def predictions():
    """
    Return {name: row} of the predictions that were made.
    """
    return {
        name: _PREDICTION | row
        for name, row in read_state().items()
        if row.get("first") is not None
    }


def note_check(number, passed):
    """
    Note one check of a task. What was passed once stays passed.
    """
    with _changing(number, _TASK) as row:
        row["checks"] += 1
        row["is_passed"] = row["is_passed"] or passed


def note_hint(number, num_hints):
    """
    Note that the next of a task's hints is taken, and return its place, from 0.

    After the last one it is the last one again.
    """
    place = 0
    with _changing(number, _TASK) as row:
        place = min(row["hints"], num_hints - 1)
        row["hints"] = place + 1
    return place


def note_prediction(name, number):
    """
    Note what a learner says will come out; None if nothing is said this time.
    """
    if number is None and name not in read_state():
        return
    with _changing(name, _PREDICTION) as row:
        row["said"] = number
        if row["first"] is None:
            row["first"] = number


def note_outcome(name, number):
    """
    Note what came out, and return what the learner had said, or None.
    """
    said = read_state().get(name, {}).get("said")
    if said is not None:
        with _changing(name, _PREDICTION) as row:
            row["was"] = number
    return said


@contextmanager
def _changing(name, blank):
    # Locked for two kernels at once; written aside and renamed for a kill in between. Where the
    # file cannot be written, a check still works: it is not remembered.
    path = state_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_suffix(".lock"), "w")  # noqa: SIM115 - closed below
    except OSError:
        yield dict(blank)
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        row = blank | read_state().get(name, {})
        yield row
        with suppress(OSError):  # a disk that is full
            text = json.dumps(read_state() | {name: row}, indent=1, sort_keys=True)
            replace_text(path, text)
