"""
A learner's number before the run, and what came out after it.

    predict("lines", ...)       # the learner puts a number in place of the dots
    ok("4 ranks answered", lines=4)

prints `ok: 4 ranks answered`, and below it `you said 1; it was 4`. Whoever leaves the dots reads
`it was 4`.
"""

import numbers

from ddp_lessons.errors import BadInput
from ddp_lessons.progress import notes


def predict(name, number=...):
    """
    Note a learner's number for what the next cells will show.

    Args:
        name: What is foretold, such as "lines". No two questions of the course share a name.
        number: The learner's number; the dots leave the question open, which costs nothing.

    Raises:
        BadInput: It is no number.
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


def ok(text, **was):
    """
    Say that a section holds, and what came of its prediction.

    Args:
        text: What holds.
        was: The name of a prediction, and the number that came out.
    """
    print(f"ok: {text}")
    for name, number in was.items():
        said = notes.note_outcome(name, number)
        print(f"it was {number}" if said is None else f"you said {said}; it was {number}")
