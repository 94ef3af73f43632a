"""
Where a rank was when it died: written by itself, as nobody outside can know it.

A crash is written down by faulthandler's signal handler. An `os._exit` or a SIGKILL that a rank
sends itself leaves no time afterwards, so the line is written before. Of a SIGKILL from outside,
such as Linux's when memory runs out, no rank can leave a word.
"""

import faulthandler
import functools
import os
import signal

from ddp_lessons.ranks.warden.children import stack_file
from ddp_lessons.ranks.diagnosis.stacks import parse_stacks

_CRASH = "Fatal Python error: "
_OWN_WILL = "Ends itself.\n\n"


def leave_last_words(file):
    """
    From now on, have this process write its stacks to a file before it dies.

    Args:
        file: Descriptor of the file, which must stay open.
    """
    faulthandler.enable(file, all_threads=True)
    os.register_at_fork(after_in_child=faulthandler.disable)  # its children are not the rank
    own = os.getpid()
    os._exit = _noting(os._exit, file, lambda *_: os.getpid() == own)
    os.kill = _noting(os.kill, file, lambda *what: what == (own, signal.SIGKILL))


def _noting(end, file, is_the_end):
    @functools.wraps(end)
    def noting(*args, **kwargs):
        if is_the_end(*args):
            os.write(file, _OWN_WILL.encode())
            faulthandler.dump_traceback(file, all_threads=False)
        return end(*args, **kwargs)

    return noting


def read_last_words(folder, rank):
    """
    Return where a rank died, as far as it has told.

    Args:
        folder: The runtime folder of its ranks.
        rank: The rank that died.

    Returns:
        (int or None, bool): Line of the cell, from 1; whether the rank ended itself.
    """
    try:
        text = stack_file(folder, rank).read_text(errors="replace")
    except OSError:
        return None, False
    begin, is_own_will = max((text.rfind(_CRASH), False), (text.rfind(_OWN_WILL), True))
    found = parse_stacks(text[begin:]) if begin >= 0 else None
    return (found[0] if found else None), begin >= 0 and is_own_will


def line_of_death(keeper, rank, place, source_line):
    """
    Say where a rank died.

    Args:
        keeper: The ranks' keeper.
        rank: The rank that died.
        place: The place at which it was seen last, or None.
        source_line: Function from a line number to that line of the cell.

    Returns:
        dict: `line`, `code`, `is_last_seen` and `ended_itself` for an Outcome.
    """
    line, ended_itself = read_last_words(keeper.folder, rank)
    if line is None and place:
        seen = place["line"]
        return {"line": seen, "code": place["code"], "is_last_seen": True, "ended_itself": False}
    code = source_line(line) if line else ""
    return {"line": line, "code": code, "is_last_seen": False, "ended_itself": ended_itself}
