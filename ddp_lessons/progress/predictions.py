"""
A learner's predictions: a number before a section's run, and the outcome after it.

    predict("lines", ...)       # the learner puts a number in place of the dots
    ok("4 ranks answered", lines=4)

This prints `ok: 4 ranks answered`, and below it `you said 1; it was 4`. A learner who leaves the
dots reads `it was 4`.
"""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING

from ddp_lessons.errors import BadInput
from ddp_lessons.progress import notes

if TYPE_CHECKING:
    from types import EllipsisType


def predict(name: str, number: numbers.Real | float | EllipsisType = ...) -> None:
    """
    Record a learner's prediction of a number that the next cells will show.

    Args:
        name: Name of the prediction, such as "lines". No two questions of the course share a name.
        number: The learner's number; the dots leave the question open, which costs nothing.

    Raises:
        BadInput: The argument `number` is no number.
    """
    if number is ...:
        notes.note_prediction(name, None)
        return
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise BadInput(
            f"No number: expected one, such as 4 or 0.5, for {name} (got {number!r}). "
            "Put it in place of the dots, or leave the dots there."
        )
    notes.note_prediction(name, number)
    print(f"noted: {number}")


def ok(text: str, **was: numbers.Real | float) -> None:
    """
    Print that the claim of a section holds, and the outcome of its prediction.

    Args:
        text: The claim.
        was: The outcome as a number, under the name of its prediction, such as `lines=4`.
    """
    print(f"ok: {text}")
    for name, number in was.items():
        said = notes.note_outcome(name, number)
        print(f"it was {number}" if said is None else f"you said {said}; it was {number}")
