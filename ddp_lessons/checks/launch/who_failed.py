"""
Task 09.4: tell six logs apart.
"""

from random import Random

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.launch.failed_jobs import (
    NUM_WORKERS,
    WAYS,
    import_torchrun,
    make_logs,
)
from ddp_lessons.launch import root_cause
from ddp_lessons.pictures import holdings_picture

WHYS = ("raised", "exited", "killed", "left", "stopped")
_SIGNALS = (9, 6, 11)  # out of memory, abort, segmentation fault
_TEXTS = ("batch 17 is empty", "loss is nan", "no such column: price", "shape (3, 4)")


def _cases(draw):
    yield Case(4, {"jobs": len(WAYS), "exit code": 1, "signal": 11}, seed=67)
    code = draw.choice((134, 137, 139))  # 128 and more is how a shell tells of a signal
    data = {"jobs": 3, "exit code": code, "signal": draw.choice(_SIGNALS)}
    yield Case(draw.choice((2, 3)), data)


def _wanted(case):
    """
    Return (name, way, culprit, text) of each job of a case, in an order that is drawn.
    """
    draw = Random(case.seed)
    ways = draw.sample(WAYS, case["jobs"])
    if "exited" not in ways:
        ways[0] = "exited"
    made = []
    for number, way in enumerate(ways):
        text = draw.choice(_TEXTS)
        text = {"exited": case["exit code"], "killed": case["signal"]}.get(way, text)
        made.append((f"job-{number}", way, draw.randrange(NUM_WORKERS), text))
    return made


def _mine(case, rank):
    return _wanted(case)[rank :: case.world_size]


def _act(here, who_failed):
    own = here.folder / f"jobs-{here.case.seed}-{here.rank}"
    own.mkdir()
    logs = make_logs(own, _mine(here.case, here.rank))
    reports = []
    for folder in logs.values():
        reports.append((folder / "torchrun.txt").read_text())
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        here.call(who_failed, folder)
        if {file.name: file.read_bytes() for file in folder.iterdir()} != before:
            return {"reports": reports, "is_changed": True}
    return {"reports": reports, "is_changed": False}


def _right(way, culprit):
    if way == "stopped":
        return None, "stopped"
    return culprit, "raised" if way == "late" else way


def _judge(played):
    for seen in played.seen:
        if seen.kept["is_changed"]:
            raise played.wrong("input-changed", seen.rank, fact="The logs are not as they were.")
        for wanted, call, report in zip(
            _mine(played.case, seen.rank), seen.calls, seen.kept["reports"], strict=False
        ):
            _judge_log(played, seen.rank, wanted, call.result, report)


def _judge_log(played, rank, wanted, got, report):
    name, way, culprit, text = wanted
    right = _right(way, culprit)
    if not (isinstance(got, tuple) and len(got) == 2):
        raise played.wrong("no-pair", rank, got=got, fact="It must return (rank, why).")
    if got == right:
        return
    both = {"got": got, "expected": right}
    told = root_cause(report)
    blamed = "" if told is None else f" The report's root cause is rank {told[0]}."
    fact = f"The log is that of {name}: {_story(way, culprit, text)}{blamed}"
    if got[1] not in WHYS or not (got[0] is None or type(got[0]) is int):
        fact = "A rank is a whole number or None, and why is one of the five words."
        raise played.wrong("no-word", rank, **both, fact=fact)
    if way == "stopped":
        raise played.wrong("not-stopped", rank, **both, fact=fact)
    if got[1] == "stopped":
        raise played.wrong("failed", rank, **both, fact=fact)
    if got[0] != culprit:
        if way == "left":
            raise played.wrong("one-left", rank, **both, fact=fact)
        raise played.wrong("victim", rank, **both, fact=fact)
    raise played.wrong("why", rank, **both, fact=fact)


def _story(way, culprit, text):
    return {
        "raised": f"rank {culprit} raised an error ({text}).",
        "late": f"rank {culprit} raised an error ({text}), and took long to end.",
        "exited": f"rank {culprit} ended itself with exit code {text}, and said nothing.",
        "killed": f"rank {culprit} was killed by signal {text}.",
        "left": f"rank {culprit} ended with exit code 0, before the others were through.",
        "stopped": "torchrun was told to end, by signal 15.",
    }[way]


def _draw(played):
    rows: list = []
    for seen in played.seen:
        told = {}
        for (name, *_), call in zip(_mine(played.case, seen.rank), seen.calls, strict=True):
            rank, why = call.result
            told[name] = why if rank is None else f"rank {rank} {why}"
        rows.append(told)
    return holdings_picture([name for name, *_ in _wanted(played.case)], rows)


who_failed = Task(
    number="09.4",
    waits_s=10.0,
    name="who_failed",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="six jobs that failed, and each culprit found among its victims",
    draw=_draw,
    hints=(
        "A rank that loses its peer raises ConnectionError: it is a victim. One with exit code -15 "
        "was ended by torchrun: a victim, too. Who is left?",
        "Ask in this order. Does the report name any rank at all? Has a rank's log, at its end, an "
        "error that is no ConnectionError? Is there an exit code that no victim has?",
        "The report lists those that torchrun found dead with another exit code than 0. A rank "
        "that it does not list has ended with 0, though the others still worked.",
        "re.findall(r'rank +: (\\d+).*\\n +exitcode +: (-?\\d+)', report) gives the pairs; of a "
        "log, look at what follows the last 'Traceback', with log.rpartition.",
    ),
    mistakes={
        "no-pair": "Return two things: the rank, and the word.",
        "no-word": "The words are raised, exited, killed, left and stopped; rank is a whole "
        "number, and None with stopped.",
        "not-stopped": "No rank failed here. The report names none, and says which signal torchrun "
        "itself has got.",
        "failed": "A rank failed here. torchrun was not told to end: its report names ranks.",
        "one-left": "All that the report lists are victims: they lost a peer. Which rank is not "
        "listed?",
        "victim": "That rank is a victim: it lost its peer, or torchrun ended it, or it went on "
        "after an error that it has survived. The root cause of a report may be a victim, too: it "
        "is what torchrun has seen first.",
        "why": "The rank is right. A negative exit code is an end by a signal, 0 is in no list, "
        "and whoever raised has printed it. What a rank has survived has not ended it.",
        "raised": "A log may lack what you look for: the report of a job that was stopped names no "
        "rank, and a rank that was killed prints nothing.",
        "input-changed": "Only read the logs.",
    },
    allowed=(),
    warm_up=import_torchrun,
)
