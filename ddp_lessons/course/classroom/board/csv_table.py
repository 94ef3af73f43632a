"""
The board as a CSV table for a spreadsheet: one line for each learner and column.
"""

import csv
import datetime
import io

from ddp_lessons.course.classroom.board import view

FIELDS = (
    "name", "kind", "lesson", "key", "state", "checks", "hints", "last_mistake",
    "first_said", "before_run", "came_out", "solved_at", "login",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns, rows):
    """
    Return the table as text, without the columns that a learner has not begun.

    Args:
        columns: List of Columns.
        rows: List of Rows.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, lineterminator="\r\n")
    writer.writeheader()
    for row in sorted(rows, key=lambda one: one.name.casefold()):
        for column in columns:
            shown = view.cell(column, row)
            if shown["is"] != "open" or shown["hints"]:
                writer.writerow(_line(column, row))
    return out.getvalue()


def _line(column, row):
    shown = view.cell(column, row)
    kind = "tasks" if column.kind == "task" else "predictions"
    told = row.state[kind][column.key]
    line = {
        "name": _harmless(row.name),
        "kind": column.kind,
        "lesson": column.stem,
        "key": column.key,
        "state": shown["is"],
        "login": _harmless(row.login),
    }
    if column.kind == "task":
        line |= {"checks": told["checks"], "hints": told["hints"]}
        line |= {"last_mistake": shown["mistake"] or "", "solved_at": _time(told["solved_s"], row)}
    else:
        line |= {"first_said": told["first"], "before_run": told["before"], "came_out": told["was"]}
    return line


def _harmless(text):
    # A spreadsheet takes a text that begins like this for a formula, and runs it.
    return f"'{text}" if text.startswith(_FORMULA) else text


def _time(at_s, row):
    if at_s is None:
        return ""
    at = datetime.datetime.fromtimestamp(at_s + row.ahead_s, datetime.UTC)
    return at.isoformat(timespec="seconds")
