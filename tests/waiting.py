"""
Wait for something to become true, in place of sleeping and hoping.
"""

import time

_POLL_S = 0.01


def wait_until(condition, timeout_s, what):
    """
    Call `condition` until it is true, and return what it returned.

    Raises:
        AssertionError: It was never true. The message says what was waited for.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}")
        time.sleep(_POLL_S)
