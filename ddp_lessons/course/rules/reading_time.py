"""
How long a reader needs for a lesson: reckoned from its words, its lines of code and its questions.
"""

import math
import re

from ddp_lessons.course.notebooks.cell_roles import first_reading, role_of

WORDS_A_MINUTE = 150
"""
Plain prose is read at 240 words a minute; where each sentence is a step, at two thirds of that.
"""
LINES_A_MINUTE = 8
"""
Lines of code that are read to be understood, and run.
"""
MINUTES_A_QUESTION = 1.0
"""
To think of a number, put it in, and compare it with what came out.
"""
_STEP = 5  # minutes; nobody plans finer


def minutes(notebook):
    """
    Return a lesson's minutes, rounded up to five. What a reader may skip is not counted.

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
    return _STEP * math.ceil((needed + num_questions * MINUTES_A_QUESTION) / _STEP)
