"""
The minutes that a reader needs for a lesson, estimated from its words, lines of code and questions.
"""

import math
import re
from statistics import median

from ddp_lessons.course.notebooks.cell_roles import first_reading, role_of

WORDS_A_MINUTE = 150
"""
Plain prose is read at 240 words a minute. A text in which each sentence is a step is read at two
thirds of that speed.
"""
LINES_A_MINUTE = 8
"""
Lines of code that are read, understood and run in a minute.
"""
MINUTES_A_QUESTION = 1.0
"""
Minutes to think of a number, type it in, and compare it with the result.
"""
STEP = 5
"""
Minutes in titles are multiples of this number, because finer steps are of no use to a planner.
"""
MOST_DRIFT = 10
"""
Minutes by which the estimate and the readers' median may differ. A larger difference says that the
text was changed since they read it.
"""
WANTED_MINUTES = 45


def warning(notebook):
    """
    Return a warning about a lesson's minutes as its readers reported them; "" if there is none.

    Args:
        notebook: A notebook of nbformat 4. Its first cell notes the minutes of its readers, or the
            warning is "".
    """
    reported = notebook["cells"][0]["metadata"].get("minutes", [])
    if not reported:
        return ""
    needed, estimate = median(reported), minutes(notebook)
    if needed > WANTED_MINUTES:
        return (
            f"its readers needed more than {WANTED_MINUTES} minutes: move the parts that not "
            'everybody needs to its last sections, headed "More: ...?"'
        )
    if abs(estimate - needed) > MOST_DRIFT:
        return (
            f"its text looks like {estimate} minutes, and its readers needed {needed:g}: if it was "
            "changed since, have it read again, and note the new minutes"
        )
    return ""


def minutes(notebook):
    """
    Return a lesson's minutes, rounded up to five, without the sections that may be skipped.

    Args:
        notebook: A notebook of nbformat 4.
    """
    num_words = num_lines = num_questions = 0
    for _, cell in first_reading(notebook):
        role, source = role_of(cell), cell["source"]
        if cell["cell_type"] == "markdown":
            num_words += sum(bool(re.search(r"\w", word)) for word in source.split())
        elif role == "predict":
            num_questions += 1
        else:
            lines = [line.strip() for line in source.splitlines()]
            num_lines += sum(bool(line) and not line.startswith("%%") for line in lines)
    needed = num_words / WORDS_A_MINUTE + num_lines / LINES_A_MINUTE
    return STEP * math.ceil((needed + num_questions * MINUTES_A_QUESTION) / STEP)
