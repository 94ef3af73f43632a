"""
Random numbers that depend on the test's name, so that a failure repeats in the next run.
"""

import os
import random

DRAWS = os.environ.get("DRAWS") or "0"  # `make` passes an empty DRAWS on
"""
The seed that all draws share: `DRAWS=7 make bank` draws other cases.
"""


def drawn_from(name):
    """
    Return a random.Random whose seed is a name.
    """
    return random.Random(f"{DRAWS} {name}")
