"""
Bound what a cell prints on a rank: the kernel holds all of it in memory, and so does the browser.

A loop that prints without end would fill the kernel's memory, and all variables in it would go.
"""

MOST_CHARACTERS = 1 << 20
"""
Of one cell on one rank: twenty thousand lines. Nobody reads more, and a notebook stores them.
"""


class PrintBound:
    """
    Let through what a cell prints up to a limit, and say at its end how much was left out.

    Args:
        streams: What is printed to, such as sys.stdout; each gets another `write`.
        most: Characters that one cell may print, to all streams together.
    """

    def __init__(self, streams, most=MOST_CHARACTERS):
        self._most = most
        self._num_printed = 0
        self._writes = [stream.write for stream in streams]
        for stream, write in zip(streams, self._writes, strict=True):
            vars(stream)["write"] = self._bounded(write)

    def begin(self):
        """
        A cell begins.
        """
        self._num_printed = 0

    def end(self):
        """
        A cell ends: say what was left out.
        """
        left_out, self._num_printed = self._num_printed - self._most, 0
        if left_out > 0:
            self._writes[0](
                f"\n... {left_out:,} more characters of this rank's are left out: a cell may print "
                f"{self._most:,}. Write to a file to keep all.\n"
            )

    def _bounded(self, write):
        def bounded(text):
            if not isinstance(text, str):
                return write(text)  # which says what is wrong with it
            room = max(0, self._most - self._num_printed)
            self._num_printed += len(text)
            if room >= len(text):
                return write(text)
            if room:
                write(text[:room])
            return len(text)

        return bounded
