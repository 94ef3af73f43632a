"""
The handle of a message that does not come.
"""


class FailedWork:
    """
    Raise when it is waited for, as torch's handle does once its group has ended.

    Args:
        errors: What each wait raises, in turn; the waits after them come back. None: always a
            RuntimeError.

    Attributes:
        num_waits: How often it was waited for.
    """

    def __init__(self, *errors):
        self._always, self._errors = not errors, list(errors)
        self.num_waits = 0

    def wait(self):
        """
        Wait for the message.
        """
        self.num_waits += 1
        if self._always:
            raise RuntimeError("Connection closed by peer")
        if self._errors:
            raise self._errors.pop(0)
