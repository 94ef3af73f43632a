"""
Make a rank's traceback cheap: 32 ranks that raise at once share the cores, and a learner waits.
"""

import inspect
import sys
import traceback as plain
from asyncio import CancelledError

from ddp_lessons.ranks.rank.where import text_of_error

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
