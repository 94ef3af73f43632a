"""
Task 10.1: from the stack dumps of a job that hung, name the culprit and the line.

On each rank: `_act`; in both: `_jobs`. In the kernel: the rest.
"""

from pathlib import Path
from random import Random

from ddp_lessons.checks.kit import Case, Mistake, Task
from ddp_lessons.checks.kit.shared.corpus import recorded_jobs
from ddp_lessons.hangs import own_frames, read_stack
from ddp_lessons.pictures import holdings_picture

SCRIPT, HELPER = "job.py", "my_job.py"
FAULTS = (
    "waits for a batch",
    "waits in a helper",
    "looks for a file",
    "validates alone",
    "saves alone",
)
_DIGITS = (2, 3, 4, 1)  # how many digits the right line's number has
_TWO_DIGITS = 10
_RECORDED = Path(__file__).with_name("recorded")


def _cases(draw):
    yield Case(4, {"faults": [FAULTS[0]], "library": "at the same line"}, seed=1)
    yield Case(4, {"faults": draw.sample(FAULTS, 5), "library": "at the same line"})
    yield Case(3, {"faults": draw.sample(FAULTS, 4), "library": "at other lines"})
    yield Case(2, {"faults": draw.sample(FAULTS, 4), "library": "at the same number"})


def _jobs(case):
    """
    Return the recorded jobs of a case. Their lines have 1 to 4 digits, if there are four jobs.
    """
    draw = Random(case.seed)
    digits = draw.sample(_DIGITS, len(_DIGITS))
    wanted = [
        {"fault": fault, "digits": digits[number % len(digits)], "library": case["library"]}
        for number, fault in enumerate(case["faults"])
    ]
    return [
        draw.choice([job for job in recorded_jobs(_RECORDED) if one.items() <= job.items()])
        for one in wanted
    ]


def _act(context, culprit):
    for job in _jobs(context.case):
        context.call(culprit, list(job["dumps"]), SCRIPT)


def right_answer(job):
    """
    Return the right answer for a recorded job: (rank, line).
    """
    return job["culprit"], job["line"]


def _fact(view, fits):
    """
    Return a sentence about the first wrongly answered job for which `fits` has a fact, or "".

    Args:
        view: The View.
        fits: Function (job, got) of a recorded job and the answer's result. It returns a sentence,
            or something false.
    """
    for job, call in zip(_jobs(view.case), view.seen.calls, strict=True):
        got, right = call.result, right_answer(job)
        if not _is_pair(got) or tuple(got) != right:
            fact = fits(job, got)
            if fact:
                about = f"In the job whose rank {job['culprit']} {job['fault']}, {fact}"
                return f"{about} It returned {got!r}, and {right!r} is right."
    return ""


def _is_pair(got):
    return isinstance(got, tuple | list) and [type(one) for one in got] == [int, int]


def _frames(job, rank):
    return read_stack(job["dumps"][rank]) if rank in range(len(job["dumps"])) else []


def _lines(job, rank, *files):
    return [frame.line for frame in _frames(job, rank) if frame.name in files]


def _own_lines(job, rank):
    return [frame.line for frame in own_frames(_frames(job, rank), SCRIPT)]


def _is_of_helper(job, got):
    rank, line = got
    if line in _lines(job, rank, HELPER) and line not in _own_lines(job, rank):
        return f"line {line} is one of {HELPER}, and not of {SCRIPT}."
    return ""


def _is_of_library(job, got):
    if got is None or _is_lost_to_same_number(job, got):
        return f"another rank's dump has a line {job['line']} as well, but of another file."
    rank, line = got
    libraries = {frame.name for frame in _frames(job, rank)} - {SCRIPT, HELPER}
    if line in _lines(job, rank, *libraries) and line not in _own_lines(job, rank):
        return f"line {line} is a library's."
    return ""


def _is_lost_to_same_number(job, got):
    is_own = got[0] == job["culprit"] and got[1] in _own_lines(job, got[0])
    return _has_same_number(job) and is_own and not _is_shared(job, got)


def _gives_no_pair(job, got):
    # An answer that leaves out the line numbers of all files finds no line if a library's line in
    # another dump has the right number.
    if _is_pair(got) or (got is None and _has_same_number(job)):
        return ""
    if _names_another_rank(job, got):  # such a rank has no line that only it has
        return ""
    return "it gave no rank and line."


def _names_another_rank(job, got):
    has_no_line = isinstance(got, tuple | list) and len(got) == 2 and got[1] is None
    return has_no_line and type(got[0]) is int and got[0] != job["culprit"]


def _has_same_number(job):
    return job["library"] == "at the same number"


def _is_elsewhere(job, got):
    rank, _ = got
    return rank != job["culprit"] and f"rank {rank} is where most ranks are, or is no rank."


def _has_other_digits(job, got):
    rank, line = got
    if rank != job["culprit"]:
        return ""
    own = _own_lines(job, rank)
    starts = any(line != one and str(one).startswith(str(line)) for one in own)
    if starts or (line in own and job["line"] < _TWO_DIGITS):
        return f"the line has the number {job['line']}, of which {line} is not all digits."
    return ""


def _is_shared(job, got):
    rank, line = got
    others = [r for r in range(len(job["dumps"])) if r != job["culprit"]]
    if rank == job["culprit"] and any(line in _own_lines(job, r) for r in others):
        return f"other ranks' dumps hold line {line} of {SCRIPT}, too."
    return ""


def _is_outer(job, got):
    rank, line = got
    is_own = rank == job["culprit"] and line in _own_lines(job, rank)
    if is_own and job["line"] >= _TWO_DIGITS:
        return "there is a line further in that no other rank has."
    return ""


def _draw(case_result):
    (job,) = _jobs(case_result.case)
    frames = [own_frames(read_stack(dump), SCRIPT)[0] for dump in job["dumps"]]
    held = [{"is at": f"line {frame.line}, {frame.function}"} for frame in frames]
    rank, line = case_result.results[0]
    held[rank]["named"] = f"line {line}"
    return holdings_picture(["is at", "named"], held)


culprit = Task(
    number="10.1",
    name="culprit",
    cases=_cases,
    act=_act,
    ok="rank and line named in every job that hung",
    draw=_draw,
    hints=(
        "Most ranks wait in the same place, and their dumps look alike. Look for the dump that "
        "does not.",
        "Take only the lines of the script from each dump, as a list of numbers. How often does "
        "each list occur?",
        "In the odd list, take the first number that is in no other rank's list: lines are "
        "innermost first.",
        "next(n for n in mine if all(n not in way for way in others)), where mine is the list that "
        "occurs once.",
    ),
    mistakes=(
        Mistake(
            "no-pair",
            "Return (rank, line) in each job, both int: a number in a text is still text.",
            shows=lambda view: _fact(view, _gives_no_pair),
        ),
        Mistake(
            "library-line",
            "Lines of other files belong to libraries. Leave them out.",
            shows=lambda view: _fact(view, _is_of_library),
        ),
        Mistake(
            "other-script",
            "A name that ends in the script's name is another file: compare the whole name, after "
            "the last slash.",
            shows=lambda view: _fact(view, _is_of_helper),
        ),
        Mistake(
            "waiting-rank",
            "A rank that waits in an all-reduce is not to blame, and a culprit may be in an "
            "all-reduce, too: compare the lines of the script, not the names of calls.",
            shows=lambda view: _fact(view, _is_elsewhere),
        ),
        Mistake(
            "shared-line",
            "Functions of the script are shared: two ranks may be in the same function, called "
            "from two places. Leave out the lines that another rank has, too.",
            shows=lambda view: _fact(view, _is_shared),
        ),
        Mistake(
            "outer-line",
            "A dump begins with the innermost line. Take the first that only this rank has.",
            shows=lambda view: _fact(view, _is_outer),
        ),
        Mistake(
            "digits",
            "The number of a line may have any number of digits: take all of them.",
            shows=lambda view: _fact(view, _has_other_digits),
        ),
        Mistake(
            "no-line",
            "Print one of the dumps, and go through it with a pencil.",
            shows=lambda view: _fact(
                view, lambda job, got: f"line {got[1]} is in no dump of that rank."
            ),
        ),
        Mistake(
            "raised",
            "Print the dumps in your function. Each has lines of many files, and not every rank's "
            "innermost line of the script is unlike the others'. A line's number may have any "
            "number of digits.",
        ),
    ),
    allowed=(),
    twice=True,
    must_return=False,  # "no-pair" names the job
)
