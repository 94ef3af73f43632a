"""
The names that learners choose, and how they are told that something is not allowed.
"""

import unicodedata

LONGEST_NAME = 40


class Denied(Exception):
    """
    A learner may not do that. The message says why.

    Args:
        message: What they read.
        status: The status of HTTP that goes with it.
    """

    def __init__(self, message, status=403):
        super().__init__(message)
        self.status = status


def name_of(text):
    """
    Return a name as the board shows it, or refuse it.

    Raises:
        Denied: It is empty, too long, or has signs that cannot be seen.
    """
    name = " ".join(unicodedata.normalize("NFC", str(text)).split())
    if not 1 <= len(name) <= LONGEST_NAME:
        raise Denied(f"a name of 1 to {LONGEST_NAME} characters is expected", 400)
    if any(unicodedata.category(sign).startswith("C") for sign in name):
        raise Denied("a name of letters that can be seen is expected", 400)
    return name
