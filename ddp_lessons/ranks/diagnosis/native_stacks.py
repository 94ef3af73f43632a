"""
Native stacks: where a rank is that cannot answer because C code holds the GIL.

faulthandler writes them, from a signal handler that does not need the GIL.
"""

import re

from ddp_lessons.ranks.rank.stack_snapshot import waiting_call

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_CELL_FILE = re.compile(r"[/\\]ipykernel_\d+[/\\]")


def parse_stacks(text: str) -> tuple[int, str, str] | None:
    """
    Return where the running cell is, from faulthandler's dump.

    Args:
        text: The dump of one or all threads, innermost frame first.

    Returns:
        (int, str, str) or None: Line of the cell, from 1; name of the innermost function; name of
        the communication call, or "".
    """
    for thread in re.split(r"\n\n", text):
        call = ""
        frames = [m for m in map(_FRAME.match, thread.splitlines()) if m]
        for frame in frames:
            call = waiting_call(frame["file"], frame["name"]) or call
            if _CELL_FILE.search(frame["file"]):
                return int(frame["line"]), frames[0]["name"], call
    return None
