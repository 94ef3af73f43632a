"""
Checks that refuse data that cannot be drawn, with a sentence that says what is wrong.
"""

from collections.abc import Sized
from math import isfinite

from ddp_lessons.errors import BadInput
from ddp_lessons.whole import whole_number


def need(holds: bool, fault: str, expected: str, got: object, next_step: str) -> None:
    """
    Refuse data unless a condition holds.

    Args:
        holds: The condition.
        fault: A few words for the fault if it does not hold.
        expected: The data that would be right, in words.
        got: The data passed instead.
        next_step: The advice, as a sentence without its full stop, for example "Pass the ranks".

    Raises:
        BadInput: It does not hold.
    """
    if not holds:
        raise BadInput(f"{fault}: expected {expected} (got {got}). {next_step}.")


def need_some(rows: Sized, what: str) -> None:
    """
    Refuse a list that is empty.

    Args:
        rows: The list.
        what: The name of its items, for the message, for example "ranks".

    Raises:
        BadInput: It is empty.
    """
    need(len(rows) > 0, f"No {what} to draw", "at least one", "none", f"Pass the {what}")


def is_amount(value: object) -> bool:
    """
    Return whether a value is a finite number of at least 0.
    """
    return isinstance(value, int | float) and isfinite(value) and value >= 0


def is_rank(value: object) -> bool:
    """
    Return whether a value can be a rank.
    """
    whole = whole_number(value)
    return whole is not None and whole >= 0
