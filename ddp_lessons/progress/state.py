"""
The file of a learner's state: where it is, how it is read, and how it is changed.

    {"version": 2,
     "tasks": {"02.1": {"checks": 2, "hints": 1, "is_passed": true,
                        "tries": [{"at_s": 1790000000, "mistake": "view"},
                                  {"at_s": 1790000060, "mistake": null}],
                        "hint_s": 1790000030, "solved_s": 1790000060,
                        "solved_version": "0.1.0"}},
     "predictions": {"lines": {"said": 1, "first": 1, "before": 1, "was": 4,
                               "said_s": 1790000000, "was_s": 1790000005}}}

Times are seconds since 1970. `solved_version` is the version of the course since which the task
asks what was solved; without it, the task was solved in version 0.1.0. The file has no name, no
code, and nothing about the machine. Version 1 of the file was flat, with tasks by number beside
predictions by name. It can still be read.
"""

import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ddp_lessons.files import replace_text
from ddp_lessons.progress.row_fields import cleaned

VERSION = 2
FOLDER_VARIABLE = "DDP_LESSONS_STATE_DIR"
KINDS = ("tasks", "predictions")
_NUMBER = re.compile(r"\d\d\.\d+")
_NAME = "progress"


class Unreadable(ValueError):
    """
    A text is no state, or it is a state of a later version of the course.
    """


def state_folder() -> Path:
    """
    Return the folder of the learner's state; DDP_LESSONS_STATE_DIR can name another folder.
    """
    own = os.environ.get(FOLDER_VARIABLE)
    if own:
        return Path(own)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ddp-lessons"


def state_file() -> Path:
    """
    Return the path of the state file.
    """
    return state_folder() / f"{_NAME}.json"


def blank() -> dict[str, Any]:
    """
    Return the state of a learner who has done nothing yet.
    """
    return {"version": VERSION, **{kind: {} for kind in KINDS}}


def parse(text: str) -> dict[str, Any]:
    """
    Return the state that a text holds, in today's version, each row with all its fields.

    Raises:
        Unreadable: The text is no state.
    """
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from None
    if not isinstance(told, dict):
        raise Unreadable(f"an object was expected (got {type(told).__name__})")
    version = told.get("version", 1)
    if version == 1:
        found: dict = {"tasks": {}, "predictions": {}}
        for name, row in told.items():
            found["tasks" if _NUMBER.fullmatch(name) else "predictions"][name] = row
    elif version == VERSION:
        found = {kind: told.get(kind) for kind in KINDS}
    else:
        raise Unreadable(f"version 1 to {VERSION} was expected (got {version!r})")
    if not all(isinstance(rows, dict) for rows in found.values()):
        raise Unreadable("tasks and predictions were expected, each by name")
    return {"version": VERSION, **{kind: cleaned(rows, kind) for kind, rows in found.items()}}


def read() -> dict[str, Any]:
    """
    Return the state of this learner; a blank one if the file is missing or damaged.
    """
    try:
        return parse(state_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return blank()


@contextmanager
def changing() -> Iterator[dict[str, Any]]:
    """
    Yield the state, and write it when the block has ended.

    The file is locked, so two kernels do not change it at once. It is replaced by renaming a new
    file, so a kill in between damages nothing. A damaged file is kept under another name. If
    no file can be written, a check still works, but is not recorded.
    """
    path = state_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_suffix(".lock"), "w")  # noqa: SIM115 - closed below
    except OSError:
        yield blank()
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            state = parse(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            state = blank()
        except OSError:  # not readable for this user: do not replace it
            yield blank()
            return
        except ValueError as error:
            state = blank()
            _keep_aside(path, error)
        yield state
        with suppress(OSError):  # such as a full disk
            replace_text(path, json.dumps(state, indent=1, sort_keys=True))


def _keep_aside(path, error):
    number = 1
    while (aside := path.with_name(f"{_NAME}.damaged-{number}.json")).exists():
        number += 1
    path.rename(aside)
    print(
        f"What you had done so far could not be read ({error}). It is kept in {aside.name}, and "
        "a new file is begun. Nothing else is lost: run a check again to have it noted.",
        file=sys.stderr,
    )
