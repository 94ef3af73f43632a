"""
Where a rank is that does not answer, because C code holds its interpreter: read from outside.

faulthandler's signal handler needs no interpreter lock. It writes the stacks to a file.
"""

import re
import time

from ddp_lessons.ranks.children import STACK_SIGNAL, stack_file

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_CELL_FILE = re.compile(r"[/\\]ipykernel_\d+[/\\]")
_WRITE_S = 0.5


def parse_stacks(text):
    """
    Find the line of the running cell in what faulthandler wrote.

    Args:
        text: The dump of all threads, innermost frame first.

    Returns:
        (int, str) or None: Line of the cell, from 1, and name of the innermost function.
    """
    for thread in re.split(r"\n\n", text):
        frames = [m for m in map(_FRAME.match, thread.splitlines()) if m]
        for frame in frames:
            if _CELL_FILE.search(frame["file"]):
                return int(frame["line"]), frames[0]["name"]
    return None


def place_from_outside(keeper, rank, source_line):
    """
    Say where a rank is that does not answer.

    Args:
        keeper: The ranks' keeper.
        rank: The silent rank.
        source_line: Function from a line number to that line of the cell.

    Returns:
        dict or None: As `Guard.place`, with an empty call; None if nothing was written in time.
    """
    path = stack_file(keeper.folder, rank)
    before = path.stat().st_size if path.exists() else 0
    keeper.signal_ranks([rank], STACK_SIGNAL)
    deadline = time.monotonic() + _WRITE_S
    found = None
    while found is None and time.monotonic() < deadline:
        time.sleep(0.01)
        with open(path) as f:
            f.seek(before)
            found = parse_stacks(f.read())
    if found is None:
        return None
    line, function = found
    return {
        "rank": rank, "line": line, "code": source_line(line), "call": "", "function": function,
        "peer": None, "group": None, "timeout_s": None, "collectives": [], "groups": {},
        "busy": True, "silent": True,
    }  # fmt: skip
