"""
The page's contents as plain data: cells, stuck learners, the commonest mistakes, and predictions.
"""

import re
import unicodedata
from collections import Counter

SAME_MISTAKES = 3
"""
A learner who makes the same mistake this many times in a row is stuck.
"""
SILENT_S = 600
"""
A learner who does not try an open task again for this many seconds is stuck.
"""
MOST_MISTAKES = 5
"""
Number of the learners' mistakes that are shown, at most.
"""
_BLANK = "blank"


def board(columns, rows, now_s):
    """
    Return the page's contents, as data for JSON.

    Args:
        columns: List of Columns, in the course's order.
        rows: List of Rows.
        now_s: The present time, in seconds since 1970.
    """
    rows = sorted(rows, key=lambda row: (_place(row.name), row.name))
    return {
        "lessons": _lessons(columns),
        "rows": [_row(columns, row, now_s) for row in rows],
        "mistakes": mistakes(columns, rows),
        "questions": [
            question(column, rows) for column in columns if column.kind == "section" and rows
        ],
        "now": {
            "lesson": _latest(columns, rows, ("section", "task"), "stem"),
            "question": _latest(columns, rows, ("section",), "key"),
        },
    }


def cell(column, row):
    """
    Return the contents of one cell.

    Returns:
        dict: `is` is "open", "said" or "held" for a section, and "open", "tried" or "solved" for a
            task. A task has also `checks`, `hints` and the `mistake` of the last try.
    """
    told = _told(column, row)
    if told is None:
        return {"is": "open", "hints": 0}
    if column.kind == "section":
        has_run, was_said = told["was_s"] is not None, told["said_s"] is not None
        now = "held" if has_run or told["was"] is not None else _or(was_said, "said")
        return {"is": now, "hints": 0}
    tries = _tries(told)
    now = "solved" if told["is_passed"] else _or(tries, "tried")
    last = tries[-1]["mistake"] if tries and not told["is_passed"] else None
    return {"is": now, "checks": told["checks"], "hints": told["hints"], "mistake": last}


def stuck(columns, row, now_s):
    """
    Return where a learner is stuck, and why, or None.

    Only the task on which the learner worked last counts, and only if it is open. The learner is
    stuck after the same mistake in three tries, or after ten minutes without a try.

    Returns:
        dict or None: `task`, its `name`, the `mistake`, and `why` in words.
    """
    at = [(when, one) for one in columns if (when := _touched(one, row)) is not None]
    if not at or not row.is_live:
        return None
    when, column = max(reversed(at), key=lambda pair: pair[0])  # of equal times, the later column
    told = _told(column, row)
    if column.kind != "task" or told["is_passed"] or not _tries(told):
        return None
    mistakes_made = [one["mistake"] for one in _tries(told)[-SAME_MISTAKES:]]
    silent_s = now_s - (when + row.ahead_s)
    last = mistakes_made[-1]
    if len(mistakes_made) == SAME_MISTAKES and set(mistakes_made) == {last} and last is not None:
        why = f"{SAME_MISTAKES} tries, same mistake"
    elif silent_s >= SILENT_S:
        why = f"no try for {int(silent_s // 60)} min"
    else:
        return None
    return {"task": column.key, "name": column.title, "mistake": last, "why": why}


def mistakes(columns, rows):
    """
    Return the learners' mistakes, first those that most learners have not overcome yet.

    `num_learners` counts the learners who made the mistake in one of the stored tries. `num_open`
    counts those who made it in their last try, and have not solved the task.
    """
    made: Counter = Counter()
    still: Counter = Counter()
    for column in columns:
        for row in rows:
            told = _told(column, row) if column.kind == "task" else None
            if told is None:
                continue
            names = [one["mistake"] for one in _tries(told)]
            made.update({(column, name) for name in names if name})
            if names and names[-1] and not told["is_passed"]:
                still[column, names[-1]] += 1
    order = sorted(made, key=lambda one: (-still[one], -made[one], one[0].key, one[1]))
    return [
        {
            "task": column.key,
            "name": column.title,
            "mistake": name,
            "num_learners": made[column, name],
            "num_open": still[column, name],
            "hint": column.hints.get(name, ""),
        }
        for column, name in order[:MOST_MISTAKES]
    ]


def question(column, rows):
    """
    Return the learners' predictions for a section, as they were before the section had run.

    Returns:
        dict: `spread` is [[prediction, how many learners made it], ...], rising numbers and then
            letters; `num_open` counts learners without a prediction; `was` is the commonest
            outcome, or None if no learner has run the section.
    """
    told = [_told(column, row) for row in rows]
    said = Counter(one["before"] for one in told if one and one["before"] is not None)
    came = Counter(one["was"] for one in told if one and one["was"] is not None)
    return {
        "key": column.key,
        "label": column.label,
        "title": column.title,
        "text": column.question,
        "spread": [[prediction, said[prediction]] for prediction in sorted(said, key=_rising)],
        "num_open": len(rows) - said.total(),
        "was": came.most_common(1)[0][0] if came else None,
    }


def _rising(prediction):
    # A learner may have written a letter where the question asks for a number.
    is_letter = isinstance(prediction, str)
    return (is_letter, prediction)


def _place(name):
    """
    Return the key by which names are sorted: É like E, and 10 after 9.
    """
    letters = unicodedata.normalize("NFKD", name.casefold())
    plain = "".join(sign for sign in letters if not unicodedata.combining(sign))
    parts = re.split(r"([0-9]+)", plain)
    return [(int(one), "") if one.isascii() and one.isdigit() else (0, one) for one in parts]


def _row(columns, row, now_s):
    times = [when for one in columns if (when := _touched(one, row)) is not None]
    ago_s = now_s - (max(times) + row.ahead_s) if times else None
    cells = {column.key: cell(column, row) for column in columns}
    return {
        "name": row.name,
        "login": row.login,
        "key": row.key,
        # Most cells are untouched, and are left out.
        "cells": {
            key: one for key, one in cells.items() if one["is"] != "open" or one.get("hints")
        },
        "num_solved": sum(one["is"] == "solved" for one in cells.values()),
        "ago_min": None if ago_s is None else max(0, int(ago_s // 60)),
        "stuck": stuck(columns, row, now_s),
    }


def _lessons(columns):
    shown: dict = {}
    for one in columns:
        entry = {"kind": one.kind, "key": one.key, "label": one.label, "title": one.title}
        shown.setdefault(one.stem, []).append(entry)
    return [{"stem": stem, "columns": found} for stem, found in shown.items()]


def _told(column, row):
    kind = "tasks" if column.kind == "task" else "predictions"
    return row.state[kind].get(column.key)


def _tries(told):
    """
    Return the tries of a task, without checks of a blank answer, such as in a run of all cells.
    """
    return [one for one in told["tries"] if one["mistake"] != _BLANK]


def _touched(column, row):
    """
    Return the time of a learner's last activity in a column, by the learner's clock, or None.
    """
    told = _told(column, row) or {}
    times = [told.get(name) for name in ("said_s", "was_s", "hint_s", "solved_s")]
    times += [one["at_s"] for one in told.get("tries", ())]
    return max((when for when in times if when is not None), default=None)


def _latest(columns, rows, kinds, what):
    """
    Return the lesson, or the question, in which most learners had their last activity.
    """
    last = []
    for row in rows:
        at = [
            (when, place)
            for place, one in enumerate(columns)
            if one.kind in kinds and (when := _touched(one, row)) is not None
        ]
        if at:
            last.append(getattr(columns[max(at)[1]], what))
    names = [getattr(one, what) for one in columns if one.kind in kinds]
    counts = Counter(last)
    return max(counts, key=lambda name: (counts[name], names.index(name)), default=None)


def _or(is_so, name):
    return name if is_so else "open"
