"""
What a cell prints on a rank: all of it is sent before the cell ends, and it is bounded.

A loop that prints without end would fill the kernel's memory, and all variables in it would go.
"""

import codecs
import contextlib
import os
import select
import sys
import threading
import types

from ipykernel.iostream import OutStream

MOST_CHARACTERS = 1 << 20
"""
Of one cell on one rank: twenty thousand lines. Nobody reads more, and a notebook stores them.
"""
_MOST_LOGGED_BYTES = 1 << 24
"""
Of what a rank writes to a descriptor, for those who look for its fault. A child that prints without
end writes half a GB a second, which no disk holds for long.
"""
_PIPE_BYTES = 1 << 20
"""
More than a pipe holds: Linux gives it 64 KiB, and a user may ask for a MiB.
"""


class RankStream(OutStream):
    """
    A standard stream that has read what was written to its file descriptor when a cell ends.

    C++ code and child processes write there. A thread passes it on, at a time of its own: two of
    five last lines came after the cell's end, when nobody listens any more. What forked processes
    print went the way of the rank's own output, which they do not have.

    Args:
        args, kwargs: As for ipykernel's OutStream.
    """

    def __init__(self, *args, **kwargs):
        self._reading = threading.Lock()
        self._num_logged = 0
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        super().__init__(*args, **kwargs)
        # Two threads read from here on, and one may find that the other was faster.
        if self._fid is not None:
            os.set_blocking(self._fid, False)

    def _watch_pipe_fd(self):
        # As ipykernel does, but what has been read and what has been passed on are never two things
        # to whoever holds the lock.
        if self._fid is None:
            return
        poll = select.poll()
        poll.register(self._fid, select.POLLIN)
        while self._should_watch:
            poll.poll()
            if self._should_watch:
                self.read_descriptor()

    def read_descriptor(self):
        """
        Write what is in the file descriptor's pipe, and return when all before it is written too.
        """
        if self._fid is None:  # ipykernel leaves the descriptors of pytest's processes alone
            return
        with self._reading:
            try:
                data = os.read(self._fid, _PIPE_BYTES)
            except BlockingIOError:
                return
            if not data:  # a cell has closed the descriptor
                self._should_watch = False
                return
            self.write(self._decode(data))
            data = data[: _MOST_LOGGED_BYTES - self._num_logged]
            self._num_logged += len(data)
            if not data:
                return
            with contextlib.suppress(OSError):  # a full disk costs the rank's log, not its output
                os.write(self._original_stdstream_copy, data)

    def write(self, text):
        """
        Write text; in a process that a cell has forked, to the file descriptor: it has no thread.
        """
        if self._is_master_process() or self._fid is None or not isinstance(text, str):
            return super().write(text)
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._original_stdstream_fd, data) :]
        return len(text)

    def flush(self):
        """
        Send what has been written, if anything has.

        Around each cell both streams are flushed twice: a thread is woken and waited for, though
        most cells print nothing. What was written before is in that thread's hands, in its order.
        """
        if self._buffers and self._is_master_process():
            super().flush()


class Descriptors:
    """
    Keep copies of the descriptors 0, 1 and 2, and open those again that a cell has closed.

    Otherwise the next group's socket takes the number, programs that cells start write into it, and
    a cell that closes the number again closes the group's connection.
    """

    def __init__(self):
        self._copies = {}
        for number in (0, 1, 2):
            with contextlib.suppress(OSError):  # a launcher may have left it closed
                self._copies[number] = os.dup(number)

    def put_back(self, *_):
        """
        A cell has ended: open what it has closed.
        """
        for number, copy in self._copies.items():
            try:
                os.fstat(number)
            except OSError:
                os.dup2(copy, number)


class OutputLimit:
    """
    Let through what a cell prints up to a limit, and say at its end how much was left out.

    What threads print between two cells has no cell to be shown in: the next one begins with it.

    Args:
        streams: RankStreams; each gets another `write`.
        most: Characters that one cell may print, to all streams together.

    Attributes:
        has_printed: Whether the last cell has printed anything.
        runs: Whether a cell runs, or a function that a view has sent.
    """

    def __init__(self, streams, most=MOST_CHARACTERS):
        self._most = most
        self._num_printed = 0
        self.has_printed = False
        self.runs = True
        self._late = _Late(most)
        self._streams = streams
        self._writes = [stream.write for stream in streams]
        for stream, write in zip(streams, self._writes, strict=True):
            vars(stream)["write"] = self._bounded(write)

    def begin(self, *_):
        """
        A cell begins.
        """
        self._num_printed = 0
        self.has_printed = False
        late = self._late.take()
        if late:
            print(f"Printed by a thread after the cell before:\n{late.rstrip()}")

    def end(self, *_):
        """
        A cell ends: take what comes last, and say what was left out.
        """
        for stream in self._streams:
            stream.read_descriptor()
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
            if not self.runs:
                return self._late.write(text)
            self.has_printed = True
            room = max(0, self._most - self._num_printed)
            self._num_printed += len(text)
            if room >= len(text):
                return write(text)
            if room:
                write(text[:room])
            return len(text)

        return bounded


class _Late:
    """
    Keep what is printed while nobody listens, up to a limit.
    """

    def __init__(self, most):
        self._most = most
        self._text = ""
        self._changing = threading.Lock()

    def write(self, text):
        with self._changing:
            self._text += text[: max(0, self._most - len(self._text))]
        return len(text)

    def take(self):
        with self._changing:
            text, self._text = self._text, ""
        return text


class CellStreams:
    """
    Keep what cells put into `sys.stdout` and `sys.stderr` apart from the rank's own streams.

    A cell may put a class there that has only `write`, or a file that it closes. The next cell
    finds it again. Between cells, and while an error is shown, the rank's own streams are in place.
    """

    def __init__(self):
        self._own = None  # while a cell runs
        self._of_cells = None  # what cells have put in their place

    @contextlib.contextmanager
    def of_cells(self):
        """
        Have the streams of cells in place, and flush them at the end.
        """
        if self._own is not None:  # a function that a view sends, while a cell waits in an `await`
            yield
            return
        self._own = sys.stdout, sys.stderr
        if self._of_cells is not None:
            sys.stdout, sys.stderr = self._of_cells
        try:
            yield
        finally:
            left, own = (sys.stdout, sys.stderr), self._own
            self._own, self._of_cells = None, None if left == own else left
            sys.stdout, sys.stderr = own
            for stream in left:
                with contextlib.suppress(Exception):  # it may have no `flush`, or be closed
                    stream.flush()

    @property
    def of_rank(self):
        """
        The rank's own `sys.stdout` and `sys.stderr`.
        """
        return self._own or (sys.stdout, sys.stderr)

    @contextlib.contextmanager
    def own(self):
        """
        Have the rank's own streams in place, to show something while a cell runs.
        """
        if self._own is None:
            yield
            return
        of_cells = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._own
        try:
            yield
        finally:
            sys.stdout, sys.stderr = of_cells


class SysOfRank(types.ModuleType):
    """
    The module `sys`, but its streams are the rank's own, whatever a cell has put in their place.

    ipykernel flushes `sys.stdout` before it sends a result, a picture, an error or an answer, in
    two threads. Where a cell has put a stream that cannot be flushed, nothing would be sent.

    Args:
        streams: The CellStreams of this process.
    """

    def __init__(self, streams):
        super().__init__("sys")
        self._streams = streams

    def __getattr__(self, name):
        return getattr(sys, name)

    @property
    def stdout(self):
        """
        The rank's own.
        """
        return self._streams.of_rank[0]

    @property
    def stderr(self):
        """
        The rank's own.
        """
        return self._streams.of_rank[1]
