"""
The handle of a message that never arrives.
"""


class FailedWork:
    """
    A handle whose `wait` raises, as that of torch does once its group has ended.

    Args:
        errors: The error of each wait, in turn; later waits return. Without errors, every wait
            raises a RuntimeError.

    Attributes:
        num_waits: The number of calls of `wait`.
    """

    def __init__(self, *errors):
        self._always, self._errors = not errors, list(errors)
        self.num_waits = 0

    def wait(self):
        """
        Count the wait, and raise its error.
        """
        self.num_waits += 1
        if self._always:
            raise RuntimeError("Connection closed by peer")
        if self._errors:
            raise self._errors.pop(0)
