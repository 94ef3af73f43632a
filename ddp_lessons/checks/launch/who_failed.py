"""
Task 09.4: tell apart the logs of six recorded jobs.

On each rank: `_act`; in both: `_jobs`, `_jobs_of_rank`. In the kernel: the rest.
"""

from pathlib import Path
from random import Random

from ddp_lessons.checks.kit import Case, Mistake, Task
from ddp_lessons.checks.kit.shared.corpus import recorded_jobs
from ddp_lessons.launch import root_cause
from ddp_lessons.pictures import holdings_picture

WHYS = ("raised", "exited", "killed", "left", "stopped")
_KINDS = ("raised", "disk", "late", "exited", "killed", "left", "stopped")
_RAISED = ("raised", "disk", "late")
_STORIES = {
    "raised": "rank {culprit} raised an error ({detail}).",
    "disk": "rank {culprit} raised an OSError ({detail[1]}), and did not survive it.",
    "late": "rank {culprit} raised an error ({detail}), and took long to end.",
    "exited": "rank {culprit} ended itself with exit code {detail}, and printed nothing.",
    "killed": "rank {culprit} was killed by signal {detail}.",
    "left": "rank {culprit} ended with exit code 0, while the others still worked.",
    "stopped": "torchrun was told to end, by signal {detail}.",
}
_RECORDED = Path(__file__).with_name("recorded")


def _cases(draw):
    kinds = [kind for kind in _KINDS if kind != "disk"]
    yield Case(4, {"jobs": kinds, "exit code": 1, "signal": 11}, seed=67)
    for world_size, left_out in ((3, "raised"), (2, "late")):
        kinds = [kind for kind in _KINDS if kind != left_out]
        code = draw.choice((134, 137, 139))  # a shell's exit code after signal n is 128 + n
        data = {"jobs": kinds, "exit code": code, "signal": draw.choice((9, 6, 11))}
        yield Case(world_size, data)


def _jobs(case):
    """
    Return {name: recorded job} of a case, in random order.
    """
    draw = Random(case.seed)
    details = {"exited": case["exit code"], "killed": case["signal"]}
    jobs = [
        draw.choice(
            [
                job
                for job in recorded_jobs(_RECORDED)
                if job["kind"] == kind and job["detail"] == details.get(kind, job["detail"])
            ]
        )
        for kind in draw.sample(case["jobs"], len(case["jobs"]))
    ]
    return {f"job-{number}": job for number, job in enumerate(jobs)}


def _jobs_of_rank(case, rank):
    return dict([*_jobs(case).items()][rank :: case.world_size])


def _act(context, who_failed):
    own = context.folder / f"jobs-{context.case.seed}-{context.rank}"
    changed = []
    for name, job in _jobs_of_rank(context.case, context.rank).items():
        folder = own / name
        folder.mkdir(parents=True)
        for file, text in job["files"].items():
            (folder / file).write_text(text)
        context.call(who_failed, folder)
        files = {file.name: file.read_text() for file in folder.iterdir()}
        if files != job["files"]:
            changed.append(name)
    return {"changed": changed}


def right_answer(job):
    """
    Return the right answer for a recorded job: (rank, why).
    """
    if job["kind"] == "stopped":
        return None, "stopped"
    return job["culprit"], "raised" if job["kind"] in _RAISED else job["kind"]


def _fact(view, fits):
    """
    Return the story of the first wrongly answered job for which `fits` is true, or "".

    Args:
        view: The View.
        fits: Function (job, got) of a recorded job and the answer's result.
    """
    jobs = _jobs_of_rank(view.case, view.rank)
    for (name, job), call in zip(jobs.items(), view.seen.calls, strict=True):
        right, got = right_answer(job), call.result
        if got != right and fits(job, got):
            told = f"{name}: {_story(job)} It returned {got!r}, and {right!r} is right."
            root = root_cause(job["files"]["torchrun.txt"])
            return told if root is None else f"{told} The report's root cause is rank {root[0]}."
    return ""


def _story(job):
    return _STORIES[job["kind"]].format(**job)


def _is_pair(got):
    return isinstance(got, tuple) and len(got) == 2


def _has_words(got):
    return got[1] in WHYS and (got[0] is None or type(got[0]) is int)


def _draw(case_result):
    rows: list = []
    for seen in case_result.seen:
        results = [call.result for call in seen.calls]
        names = _jobs_of_rank(case_result.case, seen.rank)
        rows.append(
            {
                name: why if rank is None else f"rank {rank} {why}"
                for name, (rank, why) in zip(names, results, strict=True)
            }
        )
    return holdings_picture(list(_jobs(case_result.case)), rows)


who_failed = Task(
    number="09.4",
    changed_in="0.2.0",
    name="who_failed",
    twice=True,
    must_return=False,  # "no-pair" names the job
    cases=_cases,
    act=_act,
    ok="six jobs that failed, and each culprit found among its victims",
    draw=_draw,
    hints=(
        "A rank that loses its peer raises ConnectionError: it is a victim. A rank with exit code "
        "-15 was ended by torchrun: a victim, too. Which rank is left?",
        "Ask in this order. Does the report name any rank at all? Does a rank's log end in an "
        "error that is no ConnectionError, and that it did not survive? Is there an exit code that "
        "no victim has?",
        "The report lists the ranks that torchrun found dead with another exit code than 0. A rank "
        "that it does not list has ended with 0, though the others still worked.",
        "re.findall(r'rank +: (\\d+).*\\n +exitcode +: (-?\\d+)', report) gives the pairs; of a "
        "log, look at what follows the last 'Traceback', with log.rpartition.",
    ),
    mistakes=(
        Mistake(
            "input-changed",
            "Only read the logs.",
            shows=lambda view: (
                view.output["changed"]
                and f"The logs of {', '.join(view.output['changed'])} are not as they were."
            ),
        ),
        Mistake(
            "no-pair",
            "Return a tuple of two things in each job: the rank, and the word.",
            shows=lambda view: _fact(view, lambda job, got: not _is_pair(got)),
        ),
        Mistake(
            "no-word",
            "The words are raised, exited, killed, left and stopped; the rank is an int, and None "
            "with stopped.",
            shows=lambda view: _fact(view, lambda job, got: not _has_words(got)),
        ),
        Mistake(
            "not-stopped",
            "No rank failed there. The report names none, and says which signal torchrun got.",
            shows=lambda view: _fact(view, lambda job, got: job["kind"] == "stopped"),
        ),
        Mistake(
            "failed",
            "A rank failed there. torchrun was not told to end: its report names ranks.",
            shows=lambda view: _fact(view, lambda job, got: got[1] == "stopped"),
        ),
        Mistake(
            "not-survived",
            "An OSError is the cause if the rank did not survive it. What does the log say after "
            "the traceback?",
            shows=lambda view: _fact(view, lambda job, got: job["kind"] == "disk"),
        ),
        Mistake(
            "victim",
            "The rank that you name is a victim: it lost its peer, or torchrun ended it, or it "
            "went on after an error that it survived. The root cause of a report may be a victim, "
            "too: it is what torchrun has seen first.",
            shows=lambda view: _fact(
                view, lambda job, got: job["kind"] != "left" and got[0] != job["culprit"]
            ),
        ),
        Mistake(
            "one-left",
            "Every rank that the report lists is a victim: it lost a peer. Which rank is not "
            "listed?",
            shows=lambda view: _fact(view, lambda job, got: got[0] != job["culprit"]),
        ),
        Mistake(
            "why",
            "The rank is right. A negative exit code is an end by a signal, and a rank with exit "
            "code 0 is in no list. An error that ended a rank stands in its log, but an error that "
            "it survived has not ended it.",
            shows=lambda view: _fact(view, lambda job, got: True),
        ),
        Mistake(
            "raised",
            "A log may lack what you look for: the report of a job that was stopped names no rank, "
            "and a rank that was killed prints nothing.",
        ),
    ),
    allowed=(),
)
