"""
What is known of a task and of a prediction, field by field. What is no such field is left out.

So a state that somebody else has sent holds counts, times, numbers and names of mistakes, and
nothing that anybody has written.
"""

import re

TASK: dict = {
    "checks": 0,
    "is_passed": False,
    "hints": 0,
    "tries": [],
    "hint_s": None,
    "solved_s": None,
}
PREDICTION: dict = {
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
So many of the last tries of a task are kept with their mistakes.
"""
MOST_ROWS = 500
"""
So many tasks and so many predictions a state may hold: more than the course has.
"""
_LONGEST_NAME = 100
_MOST_COUNT = 1_000_000
_MOST_NUMBER = 1e300  # beyond it, a page has no number for it
_LAST_S = 4e9  # in the year 2096
_MISTAKE = re.compile(r"[a-z0-9-]{0,40}")


def cleaned(rows, kind):
    """
    Return the rows of a state with the fields that they should have, and no others.

    Args:
        rows: {number of a task or name of a prediction: its fields}.
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
    return value if _is_number(value) else blank


def _try(one):
    mistake, at_s = one.get("mistake"), one.get("at_s")
    is_name = isinstance(mistake, str) and _MISTAKE.fullmatch(mistake)
    has_passed = "mistake" in one and mistake is None
    return {
        "at_s": at_s if is_time(at_s) else 0,
        "mistake": mistake if is_name else None if has_passed else "",
    }


def is_time(value):
    """
    Tell whether this is a number of seconds since 1970 that a clock may show.
    """
    return _is_number(value) and 0 <= value <= _LAST_S


def _is_number(value, kinds=(int, float)):
    is_one = isinstance(value, kinds) and not isinstance(value, bool)
    return is_one and abs(value) <= _MOST_NUMBER  # which nan is not, either
