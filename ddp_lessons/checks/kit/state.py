"""
What a learner has done so far, in one small file of theirs: checks, passes and hints of each task.

    {"02.1": {"checks": 3, "is_passed": true, "hints": 1}}
"""

import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path


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
    Return {number of the task: its row}; empty if nothing was noted or the file is damaged.
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
    return {"checks": 0, "is_passed": False, "hints": 0} | read_state().get(number, {})


def note_check(number, passed):
    """
    Note one check of a task. What was passed once stays passed.
    """
    with _changing(number) as row:
        row["checks"] += 1
        row["is_passed"] = row["is_passed"] or passed


def note_hint(number, num_hints):
    """
    Note that the next of a task's hints is taken, and return its place, from 0.

    After the last one it is the last one again.
    """
    place = 0
    with _changing(number) as row:
        place = min(row["hints"], num_hints - 1)
        row["hints"] = place + 1
    return place


@contextmanager
def _changing(number):
    # Locked for two kernels at once; written aside and renamed for a kill in between. Where the
    # file cannot be written, a check still works: it is not remembered.
    path = state_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_suffix(".lock"), "w")  # noqa: SIM115 - closed below
    except OSError:
        yield {"checks": 0, "is_passed": False, "hints": 0}
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        row = row_of(number)
        yield row
        new = path.with_suffix(f".{os.getpid()}.new")
        try:
            new.write_text(json.dumps(read_state() | {number: row}, indent=1, sort_keys=True))
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
