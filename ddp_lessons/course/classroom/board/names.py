"""
The names that learners choose, and the error for a request that is not allowed.
"""

import unicodedata

LONGEST_NAME = 40


class Denied(Exception):
    """
    A learner's request is not allowed. The message says why.

    Args:
        message: Text that the learner reads.
        status: HTTP status of the answer.
    """

    def __init__(self, message, status=403):
        super().__init__(message)
        self.status = status


def name_of(text):
    """
    Return a name as the board shows it, or refuse it.

    Raises:
        Denied: The name is empty, too long, or has invisible characters.
    """
    name = " ".join(unicodedata.normalize("NFC", str(text)).split())
    if not 1 <= len(name) <= LONGEST_NAME:
        raise Denied(f"a name of 1 to {LONGEST_NAME} characters is expected", 400)
    if any(unicodedata.category(sign).startswith("C") for sign in name):
        raise Denied("a name of letters that can be seen is expected", 400)
    return name
