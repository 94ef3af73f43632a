"""
The fields of a task's row and of a prediction's row. All other fields are removed.

So a state that a learner has sent holds only counts, times, numbers, letters of choices, names of
mistakes and versions of the course, and no text that a person has written.
"""

import re
from collections.abc import Mapping
from typing import Any

TASK: dict[str, Any] = {
    "checks": 0,
    "is_passed": False,
    "hints": 0,
    "tries": [],
    "hint_s": None,
    "solved_s": None,
    "solved_version": None,
}
PREDICTION: dict[str, Any] = {
    "said": None,
    "first": None,
    "before": None,
    "was": None,
    "said_s": None,
    "was_s": None,
}
BLANKS = {"tasks": TASK, "predictions": PREDICTION}
MOST_TRIES = 5
"""
Number of a task's last tries that are kept, each with its mistake.
"""
MOST_ROWS = 500
"""
Largest number of tasks, and of predictions, in a state: more than the course has.
"""
_LONGEST_NAME = 100
_MOST_COUNT = 1_000_000
_MOST_NUMBER = 1e300  # JavaScript's numbers are not much larger
_LAST_S = 4e9  # in the year 2096
_MISTAKE = re.compile(r"[a-z0-9-]{0,40}")
_CHOICE = re.compile(r"[a-z]")
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")


def cleaned(rows: Mapping[str, object], kind: str) -> dict[str, dict[str, Any]]:
    """
    Return the rows of a state with exactly the fields that they should have.

    Args:
        rows: Dict from a task's number or a prediction's name to its fields.
        kind: "tasks" or "predictions".
    """
    kept = {}
    for name, row in rows.items():
        if len(kept) == MOST_ROWS:
            break
        if isinstance(row, dict) and len(name) <= _LONGEST_NAME:
            fields = BLANKS[kind].items()
            kept[name] = {field: _field(field, row.get(field), blank) for field, blank in fields}
    return kept


def _field(field, value, blank):
    if field == "tries":
        tries = value if isinstance(value, list) else []
        return [_try(one) for one in tries[-MOST_TRIES:] if isinstance(one, dict)]
    if field == "is_passed":
        return value is True
    if field in ("checks", "hints"):
        return value if _is_number(value, int) and 0 <= value <= _MOST_COUNT else blank
    if field.endswith("_s"):
        return value if is_time(value) else blank
    if field == "solved_version":
        return value if isinstance(value, str) and _VERSION.fullmatch(value) else blank
    is_choice = isinstance(value, str) and _CHOICE.fullmatch(value)
    return value if is_choice or _is_number(value) else blank


def _try(one):
    mistake, at_s = one.get("mistake"), one.get("at_s")
    is_name = isinstance(mistake, str) and _MISTAKE.fullmatch(mistake)
    has_passed = "mistake" in one and mistake is None
    return {
        "at_s": at_s if is_time(at_s) else 0,
        "mistake": mistake if is_name else None if has_passed else "",
    }


def is_time(value: object) -> bool:
    """
    Tell whether a value is a time in seconds since 1970 that a clock may show.
    """
    return _is_number(value) and 0 <= value <= _LAST_S  # type: ignore[operator]  # a number


def _is_number(value, kinds=(int, float)):
    is_one = isinstance(value, kinds) and not isinstance(value, bool)
    return is_one and abs(value) <= _MOST_NUMBER  # false for nan, too
