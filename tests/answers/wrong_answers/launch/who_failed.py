"""
Answers to task 09.4.
"""

from bank import Answer

from wrong_answers.launch.sources import altered

ANSWERS = [
    Answer(
        "09.4",
        "believes the report",
        "raised",
        """\
import re

def who_failed(folder):
    report = (folder / "torchrun.txt").read_text()
    root = report.split("Root Cause")[1]
    rank = int(re.search(r"rank +: (\\d+)", root)[1])
    code = int(re.search(r"exitcode +: (-?\\d+)", root)[1])
    return rank, "killed" if code < 0 else "exited" if code > 1 else "raised"
""",
    ),
    altered(
        "09.4",
        "takes the root cause of the report where a rank has raised",
        "victim",
        (
            '            return rank, "raised"\n',
            "            root = report.split('Root Cause')[1]\n"
            "            return int(re.search(r'rank +: (\\d+)', root)[1]), 'raised'\n",
        ),
    ),
    altered(
        "09.4",
        "looks only at those that the report lists",
        "one-left",
        (
            "    for rank in range(3):\n        code = codes.get(rank, 0)",
            "    for rank in codes:\n        code = codes[rank]",
        ),
        ('else "killed"\n', 'else "killed"\n    return min(codes), "raised"\n'),
    ),
    altered(
        "09.4",
        "names a rank that was stopped",
        "not-stopped",
        ('return None, "stopped"', 'return 0, "killed"'),
    ),
    altered(
        "09.4",
        "takes a signal for a stop",
        "failed",
        (
            "    last = {}\n",
            "    if any(code < 0 and code != -15 for code in codes.values()):\n"
            '        return None, "stopped"\n    last = {}\n',
        ),
    ),
    altered(
        "09.4",
        "knows one signal alone",
        "why",
        ('"exited" if code > 0 else "killed"', '"killed" if code == -9 else "exited"'),
    ),
    altered(
        "09.4",
        "takes every OSError for an error that was survived",
        "not-survived",
        ('if f"rank {rank}: step" in end', 'if last[rank] == "OSError"'),
    ),
    altered(
        "09.4",
        "knows a rank that raised by exit code 1 alone",
        "no-pair",
        ("if last[rank] not in", "if codes.get(rank) == 1 and last[rank] not in"),
    ),
    altered(
        "09.4", "has other words", "no-word", ('return rank, "raised"', "return rank, last[rank]")
    ),
    altered(
        "09.4",
        "marks what it has read",
        "input-changed",
        ("    blocks =", '    (folder / "torchrun.txt").write_text(report + "read")\n    blocks ='),
    ),
    Answer(
        "09.4",
        "uses the package",
        None,
        """\
from ddp_lessons import launch

def who_failed(folder):
    logs = [path.read_text() for path in sorted(folder.glob("rank-*.txt"))]
    return launch.who_failed((folder / "torchrun.txt").read_text(), logs)
""",
    ),
    Answer(
        "09.4",
        "goes line by line, from the end",
        None,
        """\
def who_failed(folder):
    logs = {p.stem: p.read_text().splitlines() for p in folder.iterdir()}
    listed, rank = {}, None
    for line in logs["torchrun"]:
        key, colon, value = (part.strip() for part in line.partition(":"))
        if key == "rank":
            rank = int(value.split()[0])
        elif key == "exitcode":
            listed[rank] = int(value.split()[0])
    if not listed:
        return (None, "stopped")
    others = []
    for rank in (2, 1, 0):
        lines = logs[f"rank-{rank}"]
        starts = [n for n, line in enumerate(lines) if line.startswith("Traceback")]
        end = lines[starts[-1] + 1 :] if starts else []
        error = next((line for line in end if not line.startswith(" ")), "")
        if any(line.startswith("rank ") for line in end):
            error = ""
        if error and not error.startswith("ConnectionError"):
            return (rank, "raised")
        if not error.startswith("ConnectionError"):
            others.append(rank)
    missing = [rank for rank in others if rank not in listed]
    if missing:
        return (missing[0], "left")
    (rank,) = [rank for rank in others if listed[rank] != -15]
    return (rank, "killed" if listed[rank] < 0 else "exited")
""",
    ),
]
