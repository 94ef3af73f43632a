"""
Output of cells on a rank: all of it is sent before the cell ends, up to a limit.

Without a limit, an endless loop that prints would fill the kernel's memory, and the kernel would
die with all its variables.
"""

import codecs
import contextlib
import os
import select
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from ipykernel.iostream import OutStream

from ddp_lessons.private import ipykernel_streams as streams

MOST_CHARACTERS = 1 << 20
"""
Characters that one cell may print on one rank, about twenty thousand lines. The notebook stores
them all, and no learner reads more.
"""
_MOST_LOGGED_BYTES = 1 << 24
"""
Bytes of a rank's output that go into its log, in which a person can look for a fault. A child that
prints without end writes 0.5 GB a second, which would soon fill the disk.
"""
_PIPE_BYTES = 1 << 20
"""
Bytes to read from a pipe at once, as much as it can hold: Linux gives a pipe 64 KiB, and a user may
ask for 1 MiB.
"""


class RankStream(OutStream):
    """
    A standard stream whose file descriptor can be read at a cell's end, so that no output is late.

    C++ code and child processes write to the descriptor. ipykernel's thread reads it at any time:
    two of five last lines came after the cell's end, when the kernel no longer listens. ipykernel
    also sends the output of forked processes through a thread, which they do not have.

    Args:
        args, kwargs: Arguments of ipykernel's OutStream.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._reading = threading.Lock()
        self._num_logged = 0
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        super().__init__(*args, **kwargs)
        # From here on two threads read, and one may find the pipe emptied by the other.
        if (pipe := streams.pipe_of(self)) is not None:
            os.set_blocking(pipe, False)

    def _watch_pipe_fd(self):
        # This overrides ipykernel's loop. Here reading and passing on happen under one lock, so a
        # thread that holds the lock knows that all that was read has been passed on.
        pipe = streams.pipe_of(self)
        if pipe is None:
            return
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while self._should_watch:
            poll.poll()
            if self._should_watch:
                self.read_descriptor()

    def read_descriptor(self) -> None:
        """
        Write what is in the descriptor's pipe, and return once all earlier output is written, too.
        """
        pipe = streams.pipe_of(self)
        if pipe is None:  # ipykernel does not redirect the descriptors under pytest
            return
        with self._reading:
            try:
                data = os.read(pipe, _PIPE_BYTES)
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
            with contextlib.suppress(OSError):  # a full disk loses the rank's log, not its output
                os.write(streams.log_descriptor(self), data)

    def write(self, text: str) -> int | None:  # type: ignore[override]  # as in OutStream
        """
        Write text. A process that a cell has forked has no thread to send it: use the descriptor.
        """
        is_usual = streams.is_of_this_process(self) or streams.pipe_of(self) is None
        if is_usual or not isinstance(text, str):
            return super().write(text)
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(streams.own_descriptor(self), data) :]
        return len(text)

    def flush(self) -> None:
        """
        Send what has been written, if anything has.

        ipykernel flushes both streams twice around each cell, and each flush wakes a thread and
        waits for it. Most cells print nothing. That thread has all earlier output already.
        """
        if streams.has_unsent_text(self) and streams.is_of_this_process(self):
            super().flush()


class Descriptors:
    """
    Copies of the descriptors 0, 1 and 2, from which those that a cell has closed are opened again.

    Otherwise a socket of the next group would get the free number. Programs that cells start would
    write into that socket, and a cell that closes the number again would cut the group.
    """

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}
        for number in (0, 1, 2):
            with contextlib.suppress(OSError):  # a launcher may have left the descriptor closed
                self._copies[number] = os.dup(number)

    def put_back(self, *_: object) -> None:
        """
        Open the descriptors that a cell has closed, after the cell has ended.
        """
        for number, copy in self._copies.items():
            try:
                os.fstat(number)
            except OSError:
                os.dup2(copy, number)


class OutputLimit:
    """
    The output limit: it passes on what a cell prints up to a limit, and counts the rest.

    The next cell shows first what threads printed between two cells.

    Args:
        streams: RankStreams. The `write` of each is replaced.
        most: Characters that one cell may print to all streams together.

    Attributes:
        has_printed: Whether the last cell has printed anything.
        runs: Whether a cell runs, or a function that an ipyparallel view has sent.
    """

    def __init__(self, streams: Sequence[RankStream], most: int = MOST_CHARACTERS) -> None:
        self._most = most
        self._num_printed = 0
        self.has_printed = False
        self.runs = True
        self._late = _Late(most)
        self._streams = streams
        self._writes = [stream.write for stream in streams]
        for stream, write in zip(streams, self._writes, strict=True):
            vars(stream)["write"] = self._bounded(write)

    def begin(self, *_: object) -> None:
        """
        Reset the limit when a cell begins, and print what threads printed since the last cell.
        """
        self._num_printed = 0
        self.has_printed = False
        late = self._late.take()
        if late:
            print(f"Printed by a thread after the cell before:\n{late.rstrip()}")

    def end(self, *_: object) -> None:
        """
        Read the last output when a cell ends, and print how much was left out.
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
                return write(text)  # which raises an error that says what is wrong
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
    Text that threads print between two cells, up to a limit.
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
    The streams that cells put into `sys.stdout` and `sys.stderr`, and the rank's own streams.

    A cell may put a class there that has only `write`, or a file that it closes. The next cell
    finds the same stream. Between cells, and to show an error, the rank's own streams are in place.
    """

    def __init__(self) -> None:
        self._own: tuple[TextIO, TextIO] | None = None  # the rank's, while a cell runs
        self._of_cells: tuple[TextIO, TextIO] | None = None  # that cells have put in their place

    @contextlib.contextmanager
    def of_cells(self) -> Iterator[None]:
        """
        Put the cells' streams in place within a `with` block, and flush them at its end.
        """
        if self._own is not None:  # a view's function runs while a cell waits in an `await`
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
                with contextlib.suppress(Exception):  # the stream may have no `flush`, or be closed
                    stream.flush()

    @property
    def of_rank(self) -> tuple[TextIO, TextIO]:
        """
        The rank's own `sys.stdout` and `sys.stderr`.
        """
        return self._own or (sys.stdout, sys.stderr)

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """
        Put the rank's own streams in place within a `with` block, while a cell runs.
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
    A stand-in for the module `sys` whose streams are always the rank's own.

    ipykernel flushes `sys.stdout`, in two threads, before it sends a result, a picture, an error or
    an answer. If a cell has put a stream there that cannot be flushed, nothing would be sent.

    Args:
        streams: The CellStreams of this process.
    """

    def __init__(self, streams: CellStreams) -> None:
        super().__init__("sys")
        self._streams = streams

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    @property
    def stdout(self) -> TextIO:
        """
        The rank's own `sys.stdout`.
        """
        return self._streams.of_rank[0]

    @property
    def stderr(self) -> TextIO:
        """
        The rank's own `sys.stderr`.
        """
        return self._streams.of_rank[1]
