"""
A learner's predictions: a number or a letter before a section's run, and the outcome after it.

    predict("lines", ...)       # the learner puts a number in place of the dots
    ok("4 ranks answered", lines=4)

This prints `ok: 4 ranks answered`, and below it `you said 1; it was 4`. A learner who leaves the
dots reads `it was 4`. A question with choices has its dots in quotes, for a letter:

    predict("what_get_does", "...")
"""

from __future__ import annotations

import numbers
import re
import warnings
from typing import TYPE_CHECKING

from ddp_lessons.errors import BadInput
from ddp_lessons.progress import notes

if TYPE_CHECKING:
    from types import EllipsisType

_LETTER = re.compile(r"\(?([a-z])\)?")


def predict(
    name: str,
    prediction: numbers.Real | float | str | EllipsisType = ...,
    *,
    number: numbers.Real | float | EllipsisType = ...,
) -> None:
    """
    Record a learner's prediction of what the next cells will show.

    Args:
        name: Name of the prediction, such as "lines". No two questions of the course share a name.
        prediction: The learner's number, or the letter of a choice, such as "b"; `B` and `(b)` are
            the same. The dots, `...` or "...", leave the question open, which costs nothing.
        number: The name of `prediction` in version 0.1.0. It causes a warning, and ends with 0.3.0.

    Raises:
        BadInput: The argument `prediction` is neither a number nor a letter.
    """
    if number is not ...:
        warnings.warn(
            "predict(name, number=...) is the call of version 0.1.0, and ends with 0.3.0. Write "
            "predict(name, prediction=...).",
            FutureWarning,
            stacklevel=2,
        )
        prediction = number
    if prediction is ... or prediction == "...":
        notes.note_prediction(name, None)
        return
    letter = _letter(prediction)
    if letter is None and (
        isinstance(prediction, bool) or not isinstance(prediction, numbers.Real)
    ):
        raise BadInput(
            "Neither a number nor a letter: expected a number such as 4 or 0.5, or the letter of a "
            f'choice such as "b", for {name} (got {prediction!r}). Put it in place of the dots, or '
            "leave the dots there."
        )
    noted = prediction if letter is None else letter
    notes.note_prediction(name, noted)
    print(f"noted: {noted}")


def ok(text: str, **was: numbers.Real | float | str) -> None:
    """
    Print that the claim of a section holds, and the outcome of its prediction.

    Args:
        text: The claim.
        was: The outcome as a number or a letter, under the name of its prediction, such as
            `lines=4`.
    """
    print(f"ok: {text}")
    for name, outcome in was.items():
        said = notes.note_outcome(name, outcome)
        print(f"it was {outcome}" if said is None else f"you said {said}; it was {outcome}")


def _letter(prediction):
    if not isinstance(prediction, str):
        return None
    match = _LETTER.fullmatch(prediction.strip().lower())
    return match and match[1]
