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
        "takes a loss of a peer for a cause",
        "victim",
        ('(None, "ConnectionError")', "(None,)"),
    ),
    altered(
        "09.4",
        "takes an error that was survived for a cause",
        "why",
        ('log.rpartition("Traceback")', 'log.partition("Traceback")'),
        ("errors[-1] if errors", "errors[0] if errors"),
        ('        if last[rank] == "OSError":\n            last[rank] = None\n', ""),
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
            "        code = codes.get(rank, 0)\n        if last[rank] is None",
            "        code = codes.get(rank, 1)\n"
            "        if code == 1 and last[rank] and 0 in (codes.get(r, 0) for r in range(3)):\n"
            "            return rank, 'left'\n"
            "        if last[rank] is None",
        ),
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
        "has one word for both ends",
        "why",
        ('"exited" if code > 0 else "killed"', '"exited"'),
    ),
    altered(
        "09.4",
        "knows one signal alone",
        "why",
        ('"exited" if code > 0 else "killed"', '"killed" if code == -9 else "exited"'),
    ),
    altered(
        "09.4",
        "takes exit code 1 for an error",
        "why",
        ('"left" if code == 0 else', '"left" if code == 0 else "raised" if code == 1 else'),
    ),
    altered(
        "09.4",
        "takes for innocent who has survived an error",
        "victim",
        (
            "        if last[rank] not in",
            '        log = (folder / f"rank-{rank}.txt").read_text()\n'
            '        if "OSError" not in log and last[rank] not in',
        ),
        ('else "killed"\n', 'else "killed"\n    return 0, "exited"\n'),
    ),
    altered(
        "09.4",
        "takes for an error what was survived, unless a peer was lost later",
        "why",
        ('        if last[rank] == "OSError":\n            last[rank] = None\n', ""),
    ),
    altered(
        "09.4",
        "takes exit codes from 128 on for signals",
        "why",
        ('"exited" if code > 0', '"exited" if 0 < code < 128'),
    ),
    altered(
        "09.4", "has other words", "no-word", ('return rank, "raised"', "return rank, last[rank]")
    ),
    altered(
        "09.4", "returns texts", "no-word", ('return rank, "raised"', 'return str(rank), "raised"')
    ),
    altered("09.4", "returns the rank", "no-pair", ('return rank, "raised"', "return rank")),
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
        error = ""
        if starts:
            error = next((l for l in lines[starts[-1] + 1 :] if not l.startswith(" ")), "")
        if error and not error.startswith(("OSError", "ConnectionError")):
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
    Answer(
        "09.4",
        "takes a rank for the culprit that has lost no peer",
        "victim",
        """\
import re

FAILURE = re.compile(
    r"rank\\s*:\\s*(\\d+)\\s*\\(local_rank:\\s*\\d+\\)\\s*exitcode\\s*:\\s*(-?\\d+)\\s*\\(pid:\\s*(\\d+)\\)"
)
HEADING = r"^Traceback \\(most recent call last\\):\\n"
TRACEBACK = re.compile(HEADING + r"(?:[ \\t].*\\n|\\n)*(\\S.*)", re.M)


def read(folder):
    torchrun = (folder / "torchrun.txt").read_text(errors="replace")
    codes = {rank: 0 for rank in range(3)}
    for rank, code, _ in FAILURE.findall(torchrun):
        codes[int(rank)] = int(code)
    logs = []
    for rank in range(3):
        log = (folder / f"rank-{rank}.txt").read_text(errors="replace")
        logs.append(re.sub(r"(?m)^\\[rank\\d+\\]: ?", "", log))
    return torchrun, codes, logs


def last_error(log):
    errors = TRACEBACK.findall(log)
    return errors[-1].split(":")[0].split(".")[-1].strip() if errors else ""


def was_stopped(torchrun):
    return "SignalException" in torchrun or "death signal" in torchrun


def who_failed(folder):
    torchrun, codes, logs = read(folder)
    if was_stopped(torchrun):
        return None, "stopped"
    for rank in range(3):
        if "ConnectionError" in logs[rank]:
            continue
        code = codes[rank]
        if code == 0:
            return rank, "left"
        if last_error(logs[rank]) not in ("", "OSError"):
            return rank, "raised"
        if code > 0:
            return rank, "exited"
        return rank, "killed"
""",
    ),
]
