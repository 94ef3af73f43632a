"""
An error of a rank: its text, its line in the cell, and a traceback that is cheap to render.

Rendering must be cheap because 32 ranks that raise at once share the cores while a learner waits.
"""

import inspect
import re
import sys
import traceback as plain
from asyncio import CancelledError
from types import TracebackType
from typing import TYPE_CHECKING

from ddp_lessons.private.ipykernel_streams import show_error_lines

if TYPE_CHECKING:
    from ipykernel.zmqshell import ZMQInteractiveShell

_DIFFERS_ON_EVERY_RUN = (r"( at)? 0x[0-9a-fA-F]+", r"^\[/[^\]]*\] ", r" \[[0-9a-f.:]+\](:\d+)?")
_PEER_IS_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Too many levels of symbolic links",  # a peer was released from a FileStore (see `release`)
)
_MOST_FRAMES = 10  # frames that are kept at a traceback's beginning, and as many at its end


def comes_of_a_lost_peer(text: str) -> bool:
    """
    Return whether an error's text is one by which torch reports a lost peer.

    The peer died, left its group, or was released earlier than this rank.
    """
    return any(words in text for words in _PEER_IS_GONE)


def shorten(traceback: TracebackType | None) -> None:
    """
    Cut the middle out of a long traceback, in place.

    IPython takes seconds to render a thousand frames, and meanwhile this rank would seem stuck.
    """
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    if len(frames) > 2 * _MOST_FRAMES:
        frames[_MOST_FRAMES - 1].tb_next = frames[-_MOST_FRAMES]


def name_modules(traceback: TracebackType | None) -> None:
    """
    Fill the cache of `inspect` with the module of each frame in a traceback.

    IPython asks `inspect` for these modules. Without the cache, `inspect` would look at the files
    of all imported modules, which takes longer than to render the traceback.
    """
    while traceback is not None:
        frame = traceback.tb_frame
        module = frame.f_globals.get("__name__")
        if module in sys.modules:
            inspect.modulesbyfile.setdefault(inspect.getabsfile(frame), module)
        traceback = traceback.tb_next


def show_briefly(shell: "ZMQInteractiveShell") -> None:
    """
    Show the current exception without its traceback.

    Args:
        shell: The engine's IPython shell.
    """
    kind, error, _ = sys.exc_info()
    assert kind is not None
    assert error is not None
    show_error_lines(shell, kind, error, [f"{kind.__name__}: {text_of_error(error)}"])


def show_plainly(shell: "ZMQInteractiveShell") -> None:
    """
    Show the current exception with Python's own traceback: it takes 1 ms, IPython's takes 500 ms.

    Args:
        shell: The engine's IPython shell.
    """
    kind, error, traceback = sys.exc_info()
    assert kind is not None
    assert error is not None
    lines = "".join(plain.format_exception(kind, error, traceback)).splitlines()
    show_error_lines(shell, kind, error, lines)


def may_come_of_a_release(error: BaseException | None) -> bool:
    """
    Return whether a release may have raised an error, or an error in its chain of causes.

    A release ends Python code by KeyboardInterrupt and an `await` by CancelledError. torch raises
    RuntimeError, and Python OSError, for a connection that was cut.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, (KeyboardInterrupt, CancelledError, RuntimeError, OSError)):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def text_of_error(error: BaseException | None) -> str:
    """
    Return the first line of an exception's text, without the parts that differ on every run.

    These parts are addresses of objects, network addresses and ports, and Gloo's source files.
    """
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception as fault:
        text = f"(its text cannot be shown: {type(fault).__name__} in __str__)"
    first = text.strip().partition("\n")[0]
    for pattern in _DIFFERS_ON_EVERY_RUN:
        first = re.sub(pattern, "", first)
    return first.partition(". This is typically caused by")[0]


def line_of_error(error: BaseException, cell_file: str | None) -> int | None:
    """
    Return the innermost line of the cell that an exception passed through, or None.
    """
    if isinstance(error, SyntaxError) and error.__traceback__ is None:
        return error.lineno
    line = error.lineno if isinstance(error, SyntaxError) else None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == cell_file:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
