"""
Task 10.1: from four stack dumps, name the culprit and the line.
"""

from ddp_lessons.checks.hangs.hanging_jobs import FAULTS, HELPER, SCRIPT, incidents, play_jobs
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.hangs import own_frames, read_stack
from ddp_lessons.pictures import holdings_picture

_TWO_DIGITS = 10


def _cases(draw):
    yield Case(4, {"faults": ["waits for a batch"]}, seed=0)
    faults = draw.sample(list(FAULTS), len(FAULTS))
    yield Case(4, {"faults": faults})
    yield Case(4, {"faults": draw.sample(list(FAULTS), 1), "libraries": "at other lines"})
    faults = draw.sample(list(FAULTS), 2)
    yield Case(3, {"faults": faults, "libraries": "at other lines"})


def _act(here, culprit):
    jobs = play_jobs(here)
    for dumps in jobs:
        here.call(culprit, dumps, SCRIPT)
    return jobs


def _judge(played):
    for number, incident in enumerate(incidents(played.case)):
        dumps = played.seen[0].kept[number]
        for rank, seen in enumerate(played.seen):
            _judge_one(played, rank, incident, dumps, seen.calls[number].result)


def _judge_one(played, rank, incident, dumps, got):
    expected = (incident.culprit, incident.line)
    both = {"got": got, "expected": expected}
    if got is None and "libraries" in played.case.data:
        raise played.wrong("library-line", rank, **both, fact=_same_number(incident))
    if not isinstance(got, tuple | list) or [type(one) for one in got] != [int, int]:
        fact = "It must return two whole numbers, the rank and the line."
        raise played.wrong("no-pair", rank, **both, fact=fact)
    if tuple(got) == expected:
        return
    who, line = got
    about = f"In the job whose rank {incident.culprit} {incident.fault}"
    ways = [own_frames(read_stack(dump), SCRIPT) for dump in dumps]
    if who not in range(len(dumps)):
        fact = f"{about}, it names rank {who}."
        raise played.wrong("waiting-rank", rank, **both, fact=fact)
    # Which file a line is of tells of the mistake, whichever rank it has led to.
    stack, own = read_stack(dumps[who]), [frame.line for frame in ways[who]]
    elsewhere = [frame.line for frame in stack if frame.name not in (SCRIPT, HELPER)]
    helper = [frame.line for frame in own_frames(stack, HELPER)]
    if who == incident.culprit:
        _judge_own_line(played, rank, incident, ways, both)
    named = "" if who == incident.culprit else f" it names rank {who}, and"
    if line in helper and line not in own:
        fact = f"{about},{named} line {line} is one of {HELPER}, and not of {SCRIPT}."
        raise played.wrong("other-script", rank, **both, fact=fact)
    if line in elsewhere and line not in own:
        fact = f"{about},{named} line {line} is a library's."
        raise played.wrong("library-line", rank, **both, fact=fact)
    if who != incident.culprit:
        fact = f"{about}, it names rank {who}."
        raise played.wrong("waiting-rank", rank, **both, fact=fact)
    fact = f"{about}, line {line} is in no dump of that rank."
    raise played.wrong("values", rank, **both, fact=fact)


def _same_number(incident):
    # Without libraries at other lines it was right.
    fact = f"Line {incident.line} of {SCRIPT} is in one dump only, though in another rank's a line "
    return f"{fact}of another file has that number."


def _judge_own_line(played, rank, incident, ways, both):
    """
    Raise WrongAnswer if the line is one of the culprit's own, or its first digits.
    """
    line, about = both["got"][1], f"In the job whose rank {incident.culprit} {incident.fault}"
    own = [frame.line for frame in ways[incident.culprit]]
    shared = {frame.line for r, way in enumerate(ways) if r != incident.culprit for frame in way}
    if line in own and line in shared:
        fact = f"{about}, other ranks' dumps hold line {line} of {SCRIPT}, too."
        raise played.wrong("shared-line", rank, **both, fact=fact)
    if line in own and "libraries" in played.case.data:
        raise played.wrong("library-line", rank, **both, fact=_same_number(incident))
    told = str(line)
    if any(told != str(one) and str(one).startswith(told) for one in own) or (
        line in own and incident.line < _TWO_DIGITS
    ):
        fact = f"{about}, the line has the number {incident.line}, and you say {line}."
        raise played.wrong("digits", rank, **both, fact=fact)
    if line in own:
        fact = f"{about}, there is a line further in that no other rank has."
        raise played.wrong("outer-line", rank, **both, fact=fact)


def _draw(played):
    ways = [own_frames(read_stack(dump), SCRIPT) for dump in played.seen[0].kept[0]]
    held = [{"is at": f"line {way[0].line}, {way[0].function}"} for way in ways]
    rank, line = played.results[0]
    held[rank]["named"] = f"line {line}"
    return holdings_picture(["is at", "named"], held)


culprit = Task(
    number="10.1",
    name="culprit",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="rank and line named in every job that hung",
    draw=_draw,
    hints=(
        "Most ranks wait in the same place, and their dumps look alike. Look for the one that "
        "does not.",
        "Take of each dump only the lines of the script, as a list of numbers. How often does each "
        "list occur?",
        "Of the odd list, take the first number that is in no other rank's list: lines are "
        "innermost first.",
        "next(n for n in mine if all(n not in way for way in others)), where mine is the list that "
        "occurs once.",
    ),
    mistakes={
        "no-pair": "Return (rank, line), both int: a number in a text is still text.",
        "waiting-rank": "Who waits in an all-reduce is not to blame, and a culprit may be in one, "
        "too: compare the lines of the script, not the names of calls.",
        "shared-line": "Functions of the script are shared: two ranks may be in the same one, "
        "called from two places. Leave out what another rank has, too.",
        "outer-line": "A dump begins with the innermost line. Take the first that only this rank "
        "has.",
        "library-line": "Lines of other files are libraries'. Leave them out.",
        "other-script": "A name that ends in the script's name is another file: compare the whole "
        "name, after the last slash.",
        "digits": "The number of a line may have any number of digits: take all of them.",
        "values": "Print one of the dumps, and go through it with a pencil.",
        "raised": "Print the dumps in your function. Each has lines of many files, and not every "
        "rank's innermost line of the script is unlike the others'. A line's number may have any "
        "number of digits.",
    },
    allowed=(),
    twice=True,
)
