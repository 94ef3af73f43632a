"""
Wait for something to become true, in place of sleeping and hoping.
"""

import time

HANGS_AFTER_S = 120.0
"""
Seconds after which what must happen is given up: so many that no load of a machine reaches them.
"""
GROWING_S = (1.0, 4.0, 16.0, 64.0)
"""
Limits to try in turn where a test must see a limit pass, but only after something has happened.
"""
_POLL_S = 0.01  # polls: files, processes and threads that end or change tell nobody


def comes_true(condition, timeout_s):
    """
    Call `condition` until it is true, and return what it returned last: false if it never was.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)


def wait_until(condition, timeout_s, what):
    """
    Call `condition` until it is true, and return what it returned.

    Raises:
        AssertionError: It was never true. The message says what was waited for.
    """
    found = comes_true(condition, timeout_s)
    if not found:
        raise AssertionError(f"waited {timeout_s} s in vain for {what}")
    return found
