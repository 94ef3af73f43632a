"""
Answers to task 11.1.
"""

from bank import Answer

from wrong_answers.speed.sources import altered

COMPUTE, TALK, WAIT, HIDDEN = (
    "compute = total(work)\n",
    "talk = total(minus(after, work))\n",
    "wait = total(minus(minus(before, after), work))\n",
    "hidden = total(own) - total(minus(own, work))\n",
)


def part(name, mistake, line, instead):
    return altered("11.1", name, mistake, (line, instead + "\n"))


ANSWERS = [
    part(
        "adds up the spans of compute", "nested", COMPUTE, "compute = sum(e - s for s, e in work)"
    ),
    part(
        "takes what is hidden out of compute",
        "less-hidden",
        COMPUTE,
        "compute = total(minus(work, own))",
    ),
    part("knows no waiting", "all-talk", TALK, "talk = total(minus(own, work))"),
    part("counts hidden communication, too", "not-hidden", TALK, "talk = total(after)"),
    part(
        "adds up each all-reduce by itself",
        "twice",
        TALK,
        "talk = sum(total(minus([one], work)) for one in after)",
    ),
    altered(
        "11.1",
        "thinks it under way until the last rank is through",
        "communication-off",
        (
            "    rows = []\n    for track, own in zip(tracks, calls):\n",
            "    rows, done = [], [max(call[1] for call in met) for met in zip(*calls)]\n"
            "    for track, own in zip(tracks, calls):\n"
            "        own = [(s, e) for (s, _), e in zip(own, done)]\n",
        ),
    ),
    part(
        "lets waiting win",
        "both-at-once",
        TALK,
        "talk = total(minus(minus(after, before), work))",
    ),
    part("forgets to wait", "no-waiting", WAIT, "wait = 0.0"),
    part("calls all of it waiting", "all-waits", WAIT, "wait = total(minus(own, work))"),
    altered(
        "11.1",
        "matches as they are listed",
        "order",
        ('sorted(of(track, "communication"))', 'of(track, "communication")'),
    ),
    part(
        "calls the rest waiting",
        "rest",
        WAIT,
        "wait = max(s[2] for s in track) - min(s[1] for s in track) - compute - talk",
    ),
    part(
        "hides a moment twice",
        "hidden-twice",
        HIDDEN,
        "hidden = sum(max(0, min(b, e) - max(a, s)) for a, b in own for s, e in work)",
    ),
    part(
        "hides from the last call on",
        "hidden-late",
        HIDDEN,
        "hidden = total(after) - total(minus(after, work))",
    ),
    altered(
        "11.1",
        "returns milliseconds",
        "unit",
        ("(compute, talk, wait, hidden)", "[1e3 * x for x in (compute, talk, wait, hidden)]"),
    ),
    altered(
        "11.1",
        "returns three parts",
        "no-rows",
        ("(compute, talk, wait, hidden)", "(compute, talk, wait)"),
    ),
    part(
        "takes the longest span of compute",
        "compute-off",
        COMPUTE,
        "compute = max(e - s for s, e in work)",
    ),
    part(
        "halves the wait",
        "waiting-off",
        WAIT,
        "wait = total(minus(minus(before, after), work)) / 2",
    ),
    part("hides nothing", "hidden-off", HIDDEN, "hidden = -1.0"),
    altered(
        "11.1",
        "asks the first all-reduce of all",
        "raised",
        ("    rows = []", "    first = calls[0][0]\n    rows = []"),
    ),
    altered(
        "11.1",
        "tells the others",
        "forbidden",
        (
            "    rows = []",
            "    import torch\n    torch.distributed.all_reduce(torch.zeros(1))\n    rows = []",
        ),
    ),
    altered("11.1", "has union and minus of its own", None),
    Answer(
        "11.1",
        "uses the package",
        None,
        """\
from ddp_lessons.speed import split_steps

def split_step(tracks):
    names = ("compute_s", "communication_s", "waiting_s", "hidden_s")
    return [[getattr(split, name) for name in names] for split in split_steps(tracks)]
""",
    ),
    Answer(
        "11.1",
        "walks through all moments with counters",
        None,
        """\
import torch

def split_step(tracks):
    calls = [sorted(s[1:] for s in track if s[0] == "communication") for track in tracks]
    rows = torch.zeros(len(tracks), 4, dtype=torch.float64)
    for rank, track in enumerate(tracks):
        turns = []
        for kind, start, end in track:
            if kind == "compute":
                turns += [(start, 0, 1), (end, 0, -1)]
        for k, (start, end) in enumerate(calls[rank]):
            last = max(own[k][0] for own in calls)
            turns += [(start, 1, 1), (end, 1, -1)]
            if last < end:
                turns += [(last, 2, 1), (end, 2, -1)]
        open_now, before = [0, 0, 0], None
        for moment, which, change in sorted(turns):
            if before is not None:
                length = moment - before
                if open_now[0]:
                    rows[rank, 0] += length
                    rows[rank, 3] += length if open_now[1] else 0
                elif open_now[2]:
                    rows[rank, 1] += length
                elif open_now[1]:
                    rows[rank, 2] += length
            open_now[which] += change
            before = moment
    return rows
""",
    ),
]
