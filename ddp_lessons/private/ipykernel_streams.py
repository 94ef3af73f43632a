"""
Private names of ipykernel's OutStream, the class of a kernel's standard output, and of IPython.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddp_lessons.private.reaching import uses_private_name

if TYPE_CHECKING:
    from ipykernel.iostream import OutStream
    from IPython.core.interactiveshell import InteractiveShell


@uses_private_name(
    "ipykernel.iostream.OutStream()._fid",
    oldest_promised="ipykernel 7.3",
    lost="what C++ code and child processes print may come after the cell has ended",
)
def pipe_of(stream: OutStream) -> int | None:
    """
    Return the descriptor of the pipe that stands for descriptor 1 or 2; None where there is none.
    """
    descriptor: int | None = stream._fid
    return descriptor


@uses_private_name(
    "ipykernel.iostream.OutStream()._original_stdstream_copy",
    oldest_promised="ipykernel 7.3",
    lost="the log of a rank lacks what C++ code and child processes print",
)
def log_descriptor(stream: OutStream) -> int:
    """
    Return a copy of the descriptor that the stream had before ipykernel put its pipe there.
    """
    return int(stream._original_stdstream_copy)


@uses_private_name(
    "ipykernel.iostream.OutStream()._original_stdstream_fd",
    oldest_promised="ipykernel 7.3",
    lost="what a process prints that a cell has forked is not shown",
)
def own_descriptor(stream: OutStream) -> int:
    """
    Return the number of the stream's descriptor, 1 or 2, which now leads into the pipe.
    """
    return int(stream._original_stdstream_fd)


@uses_private_name(
    "ipykernel.iostream.OutStream._is_master_process",
    oldest_promised="ipykernel 7.3",
    lost="what a process prints that a cell has forked is not shown",
)
def is_of_this_process(stream: OutStream) -> bool:
    """
    Return whether this process has made the stream; a process that was forked since has not.
    """
    return bool(stream._is_master_process())


@uses_private_name(
    "ipykernel.iostream.OutStream()._buffers",
    oldest_promised="ipykernel 7.3",
    lost="each cell takes 1 ms longer",
)
def has_unsent_text(stream: OutStream) -> bool:
    """
    Return whether text was written to a stream and not yet given to its thread.
    """
    return bool(stream._buffers)


@uses_private_name(
    "IPython.core.interactiveshell.InteractiveShell._showtraceback",
    oldest_promised="IPython 9.0",
    lost="an error of a rank that was released is shown with a traceback of ours",
)
def show_error_lines(
    shell: InteractiveShell,
    kind: type[BaseException],
    error: BaseException,
    lines: Sequence[str],
) -> None:
    """
    Show an error as some lines of text, and note it as the cell's error.
    """
    shell._showtraceback(kind, error, list(lines))
