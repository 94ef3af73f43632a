"""
Native stacks: the snapshot of a rank that cannot answer because C code holds the GIL.

A signal makes faulthandler's handler in the rank write the stacks to a file. The handler does not
need the GIL.
"""

import re
import time

from ddp_lessons.ranks.rank.stack_snapshot import waiting_call
from ddp_lessons.ranks.supervisor.child_main import STACK_SIGNAL, stack_file
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.load_aware_timeout import LoadAwareTimeout
from ddp_lessons.ranks.system.processes import waits_on_lock

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_CELL_FILE = re.compile(r"[/\\]ipykernel_\d+[/\\]")


def parse_stacks(text):
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


def snapshot_from_outside(supervisor, rank, source_line, insist):
    """
    Return the snapshot of a rank that does not answer.

    Args:
        supervisor: The SupervisorClient.
        rank: The silent rank.
        source_line: Function from a line number, from 1, to the text of that line of the cell.
        insist: Whether to send the signal even if it would cut short a sleep in C.

    Returns:
        dict or None: A snapshot with the entries of `RankAgent.snapshot`. None if the rank did not
        write in time, or if the signal was not sent.
    """
    pid = supervisor.pids.get(rank)
    if pid is None or not (insist or waits_on_lock(pid)):
        return None
    path = stack_file(supervisor.folder, rank)
    before = path.stat().st_size if path.exists() else 0
    supervisor.signal_ranks([rank], STACK_SIGNAL)
    time_limit = LoadAwareTimeout(clocks.STACK_ANSWER_S, lambda: [supervisor.supervisor_pid, pid])
    found = None
    while found is None and not time_limit.is_over:
        time.sleep(clocks.STACK_POLL_S)
        with open(path) as f:
            f.seek(before)
            found = parse_stacks(f.read())
    if found is None:
        return None
    line, function, call = found
    return {
        "rank": rank, "line": line, "code": source_line(line), "call": call, "function": function,
        "peer": None, "tag": None, "group": None, "root": None, "forming": None, "operation": "",
        "timeout_s": None, "collectives": [], "groups": {}, "helpers": None, "busy": True,
    }  # fmt: skip
