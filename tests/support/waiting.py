"""
Helpers that wait until a condition is true, instead of sleeping for a fixed time.
"""

import time

HANGS_AFTER_S = 120.0
"""
Seconds after which a test gives up on an event: so many that no load on a machine reaches them.
"""
GROWING_S = (1.0, 4.0, 16.0, 64.0)
"""
Limits to try in turn where a test must see a limit expire, but only after something else has
happened.
"""
_POLL_S = 0.01  # polls, because files, processes and threads do not report that they change


def comes_true(condition, timeout_s):
    """
    Call `condition` until it is true, and return its last value: false if it never was true.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)


def wait_until(condition, timeout_s, what):
    """
    Call `condition` until it is true, and return its value.

    Raises:
        AssertionError: The condition was never true. The message holds `what`.
    """
    found = comes_true(condition, timeout_s)
    if not found:
        raise AssertionError(f"waited {timeout_s} s in vain for {what}")
    return found
