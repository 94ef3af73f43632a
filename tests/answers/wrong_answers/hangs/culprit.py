"""
Answers to task 10.1.
"""

from bank import Answer, changed

CULPRIT = """\
import re

def culprit(dumps, script):
    pattern = re.compile(rf'File "(?:.*/)?{re.escape(script)}", line (\\d+)')
    ways = [[int(line) for line in pattern.findall(dump)] for dump in dumps]
    rank = next(rank for rank, way in enumerate(ways) if ways.count(way) == 1)
    others = {line for other, way in enumerate(ways) if other != rank for line in way}
    return rank, next(line for line in ways[rank] if line not in others)
"""


def _altered(name, mistake, *pairs):
    return Answer("10.1", name, mistake, changed(CULPRIT, *pairs))


_NEXT = "next(line for line in ways[rank] if line not in others)"
_PATTERN = """rf'File "(?:.*/)?{re.escape(script)}", line (\\d+)'"""

ANSWERS = [
    _altered(
        "looks for the rank that is in no all_reduce",
        "raised",
        ("ways.count(way) == 1", '"all_reduce" not in dumps[rank]'),
    ),
    _altered("takes the innermost line", "shared-line", (_NEXT, "ways[rank][0]")),
    _altered(
        "reads the dump from its end", "outer-line", ("in ways[rank] if", "in ways[rank][::-1] if")
    ),
    _altered("takes lines of all files", "library-line", (_PATTERN, "r'line (\\d+)'")),
    _altered(
        "takes what ends in the name", "other-script", (_PATTERN, """rf'{script}", line (\\d+)'""")
    ),
    _altered("returns the line as text", "no-pair", (_NEXT, f"str({_NEXT})")),
    _altered("takes two digits", "digits", (r"line (\d+)", r"line (\d\d)")),
    _altered("counts lines from 0", "no-line", (_NEXT, f"{_NEXT} - 1")),
    Answer(
        "10.1",
        "uses the package",
        None,
        """\
from ddp_lessons.hangs import odd_frames, read_stack

def culprit(dumps, script):
    stacks = {rank: read_stack(dump) for rank, dump in enumerate(dumps)}
    ((rank, frame),) = odd_frames(stacks, script).items()
    return rank, frame.line
""",
    ),
    Answer(
        "10.1",
        "splits lines, and counts each of them over all ranks",
        None,
        """\
from collections import Counter
from pathlib import PurePath

def culprit(dumps, script):
    found = []
    for rank, dump in enumerate(dumps):
        for text in dump.splitlines():
            if text.startswith("  File "):
                file, line = text.split('"')[1], text.split(", line ")[1].split(" ")[0]
                if PurePath(file).name == script:
                    found.append((rank, int(line)))
    ranks_at = Counter(line for rank, line in {*found})
    return next([rank, line] for rank, line in found if ranks_at[line] == 1)
""",
    ),
    Answer(
        "10.1",
        "compares lines of libraries, too",
        "waiting-rank",
        """\
import re
from collections import Counter
from pathlib import Path


def culprit(dumps, script):
    stacks = []
    for dump in dumps:
        found = re.findall(r'File "(.*?)", line (\\d+) in (\\w+)', dump)
        stacks.append(tuple((Path(path).name, int(line)) for path, line, _ in found))
    counts = Counter(stacks)
    rank = min(range(len(stacks)), key=lambda r: counts[stacks[r]])
    others = {place for r, stack in enumerate(stacks) if r != rank for place in stack}
    for name, line in stacks[rank]:
        if name == script and (name, line) not in others:
            return rank, line
    return rank, next((line for name, line in stacks[rank] if name == script), None)
""",
    ),
]
