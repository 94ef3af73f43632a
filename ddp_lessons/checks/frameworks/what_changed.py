"""
Task 16.2: find what a framework changed.

On each rank: `_act`. In the kernel: the rest.
"""

from ddp_lessons.checks.frameworks.material import warm_up_all
from ddp_lessons.checks.frameworks.two_runs import (
    CAUSES,
    observed_by_accelerate,
    observed_by_fabric,
    observed_plain,
)
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.pictures import holdings_picture

_BY = {"accelerate": observed_by_accelerate, "fabric": observed_by_fabric}
_MISTAKES = {
    "nothing": "false-alarm",
    "sharded twice": "twice",
    "dealt in batches": "dealt",
    "shuffled": "shuffled",
    "new order each epoch": "epoch",
    "not averaged": "averaged",
    "loss divided": "divided",
    "accumulated": "accumulated",
    "schedule too fast": "schedule",
    "less precise": "precision",
}
_OF_THE_DATA = ("dealt in batches", "shuffled")
_BY_EVERY = ("loss divided", "accumulated")


def _cases(draw):
    yield _case(draw, "dealt in batches", 4, seed=0)
    causes = draw.sample(list(CAUSES), len(CAUSES))
    for place, cause in enumerate(causes):
        # An answer may go by how much smaller a gradient is, so both lengths of a window are tried.
        for every in (2, 3) if cause in _BY_EVERY else (None,):
            yield _case(draw, cause, 2 + place % 3, every=every)


def _case(draw, cause, world_size, seed=None, every=None):
    # Every rank has a multiple of w batches in an epoch, so that nothing needs padding.
    num_batches = 4 if world_size == 2 else world_size
    batch = draw.randint(3, 4) if seed is None else 3  # 2 shuffled samples are often neighbours
    shuffles = cause == "new order each epoch" or (
        cause not in _OF_THE_DATA and draw.random() < 0.5
    )
    data = {
        "cause": cause,
        "by": draw.choice(CAUSES[cause]),
        "samples": world_size * num_batches * batch,
        "batch": batch,
        "shuffles": shuffles,
        "sampler seed": draw.randint(0, 99) if seed is None else 0,
        "every": every or (draw.choice((2, 3)) if seed is None else 2),
    }
    return Case(world_size, data, seed=seed)


def _act(context, what_changed):
    plain = observed_plain(context)
    other = _BY[context["by"]](context)
    context.call(what_changed, plain, other)
    return {"plain": plain[context.rank], "other": other[context.rank]}


def _judge(case_result):
    cause = case_result.case["cause"]
    for rank, result in enumerate(case_result.results):
        if not isinstance(result, str) or result not in CAUSES:
            fact = "It must return one of the causes, as the task spells them."
            raise case_result.wrong("no-cause", rank, got=result, fact=fact)
        if result != cause:
            both = {"got": result, "expected": cause}
            fact = "That is not what was otherwise in these two runs."
            raise case_result.wrong(_MISTAKES[cause], rank, **both, fact=fact)


def _draw(case_result):
    names = ["plain: first batch", "first loss", "other: first batch", "its first loss"]
    rows = []
    for seen in case_result.seen:
        row = []
        for run in (seen.output["plain"], seen.output["other"]):
            row += [" ".join(map(str, run["samples"][0][0])), f"{run['losses'][0]:.4f}"]
        rows.append(dict(zip(names, row, strict=True)))
    return holdings_picture(names, rows)


what_changed = Task(
    number="16.2",
    extra_time_s=6.0,  # for 26 trainings by frameworks, which the answer does not make
    name="what_changed",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="each of ten causes, from what two real runs have left",
    draw=_draw,
    twice=True,
    warm_up=warm_up_all,
    hints=(
        "What comes first can change what comes after it, and not the other way round: samples, "
        "loss, gradient, step, rate. So ask in this order.",
        "Samples first. Are there fewer? Is only the second epoch otherwise? Does a batch have "
        "samples that follow each other, or none in particular?",
        "If samples are the same: the first loss is taken before any step, so only arithmetic can "
        "change it. Then count the steps, look whether ranks have equal gradients, compare the "
        "first gradient, and the rates.",
        "len(gradients) tells of windows, gradients[0] of ranks that differ tells of a mean that "
        "was not taken, gradients[0] that is shorter on all ranks alike of a loss divided.",
    ),
    mistakes={
        "no-cause": "Return the text, letter for letter.",
        "false-alarm": "These two runs are alike to the last bit. Find which of your comparisons "
        "says otherwise.",
        "twice": "Count the samples of an epoch, of each rank or of all of them.",
        "dealt": "All samples are there, and each batch holds some that follow each other. Which "
        "loader deals like that?",
        "shuffled": "All samples are there, and a batch holds what does not follow in any order "
        "that plain DDP has without shuffling.",
        "epoch": "The first epoch has the same samples in the same order. Look at the second.",
        "averaged": "Compare the gradients of ranks with each other: after a mean all have the "
        "same.",
        "divided": "The first loss is the same, the first gradient is not, and ranks agree on it. "
        "By how much is it shorter?",
        "accumulated": "Count the steps: there is a gradient in the list for each of them.",
        "schedule": "Compare the rates, step by step.",
        "precision": "Samples and weights are the same for the first loss. Only arithmetic is "
        "left.",
        "raised": "The line that is named is yours. Lists of the two runs need not be of one "
        "length.",
        "forbidden": "Every rank has what all ranks have seen. Send nothing.",
        "input-changed": "Look, and change nothing: other ranks have lists of their own.",
    },
    allowed=(),
)
