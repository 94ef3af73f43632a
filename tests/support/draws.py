"""
What a test draws, it draws from its own name, so that what failed once fails again.
"""

import os
import random

DRAWS = os.environ.get("DRAWS") or "0"  # make hands on an empty one
"""
`DRAWS=7 make bank` draws others.
"""


def drawn_from(name):
    """
    Return a random.Random for a name.
    """
    return random.Random(f"{DRAWS} {name}")
