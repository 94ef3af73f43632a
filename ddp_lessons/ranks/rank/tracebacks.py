"""
What an error of a rank says: its text, its line in the cell, and a traceback that is cheap to make.

32 ranks that raise at once share the cores, and a learner waits.
"""

import inspect
import re
import sys
import traceback as plain
from asyncio import CancelledError

_DIFFERS_ON_EVERY_RUN = (r"( at)? 0x[0-9a-fA-F]+", r"^\[/[^\]]*\] ", r" \[[0-9a-f.:]+\](:\d+)?")
_PEER_IS_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Too many levels of symbolic links",  # the peer was freed from a FileStore: see `release`
)
_MOST_FRAMES = 10  # of a traceback's beginning and of its end


def comes_of_a_lost_peer(text):
    """
    Whether an error's text is what torch says when a peer died, left, or was freed first.
    """
    return any(words in text for words in _PEER_IS_GONE)


def shorten(traceback):
    """
    Cut the middle out of a long traceback.

    IPython takes seconds to render a thousand frames, in which this rank would seem stuck.
    """
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    if len(frames) > 2 * _MOST_FRAMES:
        frames[_MOST_FRAMES - 1].tb_next = frames[-_MOST_FRAMES]


def name_modules(traceback):
    """
    Tell `inspect` of which module each frame is, as it notes it for itself.

    IPython asks. To find out, `inspect` would look at the files of all modules there are, which
    takes a rank longer than to render the traceback.
    """
    while traceback is not None:
        frame = traceback.tb_frame
        module = frame.f_globals.get("__name__")
        if module in sys.modules:
            inspect.modulesbyfile.setdefault(inspect.getabsfile(frame), module)
        traceback = traceback.tb_next


def show_briefly(shell):
    """
    Show the current exception without its traceback.

    Args:
        shell: The engine's IPython shell.
    """
    kind, error, _ = sys.exc_info()
    shell._showtraceback(kind, error, [f"{kind.__name__}: {text_of_error(error)}"])


def show_plainly(shell):
    """
    Show the current exception with Python's own traceback, which takes a rank 1 ms and not 500.

    Args:
        shell: The engine's IPython shell.
    """
    kind, error, traceback = sys.exc_info()
    lines = "".join(plain.format_exception(kind, error, traceback)).splitlines()
    shell._showtraceback(kind, error, lines)


def may_come_of_a_release(error):
    """
    Tell whether a release may be what raised an error, or what an error was raised for.

    It interrupts Python code by KeyboardInterrupt, an `await` by CancelledError, and torch tells of
    what was cut by RuntimeError.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, (KeyboardInterrupt, CancelledError, RuntimeError, OSError)):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def text_of_error(error):
    """
    Return the first line of an exception's text, without what differs on every run.

    That is: addresses of objects, ports, and the source files of Gloo.
    """
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception as fault:
        text = f"(its text cannot be shown: {type(fault).__name__} in __str__)"
    first = text.strip().partition("\n")[0]
    for pattern in _DIFFERS_ON_EVERY_RUN:
        first = re.sub(pattern, "", first)
    return first.partition(". This is typically caused by")[0]


def line_of_error(error, cell_file):
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
