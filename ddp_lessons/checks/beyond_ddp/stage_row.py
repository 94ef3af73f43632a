"""
Task 15.3: a 1F1B schedule.

Legend: w stages, M microbatches. The table of all stages is judged as data, by its timetable. If
there are as many stages as ranks, the ranks run it as well.

On each rank: `_act`, `_run`; in both: `_num_stages`, `_first_fault`. In the kernel: the rest.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from ddp_lessons.beyond_ddp.pipeline import (
    Pipeline,
    cut,
    first_fault,
    most_alive,
    timetable,
    total_ticks,
)
from ddp_lessons.beyond_ddp.pipeline.checking import Fault
from ddp_lessons.beyond_ddp.pipeline.example import deep_model
from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.kit.shared.warm_up import import_compiler
from ddp_lessons.pictures import timetable_picture

_SAMPLES = 2  # in a microbatch
_TICKS = 3  # for a forward and a backward


def _cases(draw):
    yield Case(4, {"microbatches": 8}, seed=0)
    yield Case(1, {"microbatches": draw.randint(2, 5)})
    yield Case(2, {"microbatches": draw.randint(5, 9)})
    yield Case(3, {"microbatches": 1})
    yield Case(4, {"microbatches": draw.randint(2, 3)})
    stages = draw.randint(9, 14)
    yield Case(4, {"microbatches": stages + draw.randint(2, 9), "stages": stages})


def _num_stages(case):
    return case.data.get("stages", case.world_size)


def _act(context, stage_row):
    num_microbatches, num_stages = context["microbatches"], _num_stages(context.case)
    own = range(context.rank, num_stages, context.world_size)
    for stage in own:
        context.call(stage_row, stage, num_stages, num_microbatches)
    if num_stages > context.world_size:  # too many to run: only the timetable is judged
        return None
    table: list = [None] * context.world_size
    dist.all_gather_object(table, context.calls[0].result)  # the result of the first call
    fault = _first_fault(table, num_microbatches)
    if fault is not None and fault.kind != "stuck":  # the kernel reports the fault
        return None
    return _run(context, table, num_microbatches)  # a table that is stuck runs, and its ranks wait


def _first_fault(table, num_microbatches):
    for stage, row in enumerate(table):
        actions = row if isinstance(row, list | tuple) else ()
        longer = [one for one in actions if isinstance(one, list | tuple) and len(one) != 2]
        if longer:  # the lesson's tables have a third entry
            return Fault("form", stage, f"A pair of two expected (got {longer[0]!r:.40}).")
    return first_fault(table, num_microbatches)


def _run(context, table, num_microbatches):
    num_samples = _SAMPLES * num_microbatches
    images = torch.ones(num_samples, 64, device=context.device)
    labels = torch.zeros(num_samples, dtype=torch.int64, device=context.device)
    model = deep_model(seed=0, num_blocks=max(2, context.world_size)).to(context.device)
    stages = cut(model, context.world_size, images)[context.rank :: context.world_size]
    pipeline = Pipeline(stages, cross_entropy)
    pipeline.step(table, num_samples, images, labels)
    return pipeline.most_alive


def _judge(case_result):
    case, num_stages = case_result.case, _num_stages(case_result.case)
    table: list = [None] * num_stages
    for rank, seen in enumerate(case_result.seen):
        for stage, call in zip(range(rank, num_stages, case.world_size), seen.calls, strict=True):
            table[stage] = call.result
    fault = _first_fault(table, case["microbatches"])
    if fault is not None:
        mistake = {"stuck": "deadlock"}.get(fault.kind, fault.kind)
        row = None if fault.rank is None or fault.kind == "form" else table[fault.rank]
        raise _refusal(case_result, mistake, fault.text, row)
    _judge_held(case_result, table)
    _judge_ticks(case_result, table)


def _judge_held(case_result, table):
    num_microbatches = case_result.case["microbatches"]
    for stage, row in enumerate(table):
        held, may_hold = most_alive(row), min(len(table) - stage, num_microbatches)
        if len(table) == case_result.case.world_size:
            held = case_result.seen[stage].output  # the number that the ranks counted
        if held > may_hold:
            is_gpipe = len(table) > 1 and all(most_alive(row) == num_microbatches for row in table)
            fact = (
                f"Stage {stage} holds {held} microbatches at a time, {may_hold} at most expected."
            )
            raise _refusal(case_result, "all-first" if is_gpipe else "holds", fact, row)


def _judge_ticks(case_result, table):
    ticks = total_ticks(timetable(table))
    fewest = _TICKS * (case_result.case["microbatches"] + len(table) - 1)
    if ticks > fewest:
        fact = f"The last one is done after {ticks} ticks: {fewest} expected."
        raise _refusal(case_result, "slow", fact, table[0])


def _refusal(case_result, mistake, fact, row):
    if (
        _num_stages(case_result.case) > case_result.case.world_size
    ):  # with one stage for each rank it was right
        mistake = "more-stages"
    if row is not None:
        fact += f" Its row: {' '.join(f'{kind}{number}' for kind, number in row)}."
    return case_result.wrong(mistake, fact=fact.replace("Rank ", "Stage "))


def _draw(case_result):
    return timetable_picture(timetable(case_result.results))


stage_row = Task(
    number="15.3",
    name="stage_row",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="no table is faster, none holds less, and real ranks have run it",
    draw=_draw,
    twice=True,
    hints=(
        "Draw four stages under each other, and follow microbatch 0 to the last stage and back. "
        "How many forwards has each stage done when it comes by again?",
        "Until its first gradient comes back, a stage does forwards. How many, follows from the "
        "stages behind it. From then on it does one backward and one forward in turns.",
        "The last stage does 1 forward before its first backward, the one before it 2, and so on; "
        "but none does more than there are microbatches. In the end only backwards are left.",
        "num_first = min(num_stages - stage, num_microbatches): so many forwards, then for each "
        'number ("B", number) and, if there is one, ("F", num_first + number).',
    ),
    mistakes={
        "form": 'Return one list of pairs, for this stage alone: ("F", 0) is the forward of '
        "microbatch 0.",
        "unknown": 'Kinds are "F" and "B", and microbatches count from 0. There may be fewer '
        "microbatches than stages: then not even the first forwards are as many.",
        "twice": "Count what a stage has done before, and go on behind it.",
        "missing": "When no forward is left, some microbatches have not come back yet.",
        "early": "A stage cannot go backward through what it has not gone forward through. Which "
        "comes first in a turn depends on how many forwards you have made before.",
        "deadlock": "A stage waits for a gradient that cannot come yet, or two take microbatches "
        "in different orders. The first stage is farthest from the loss: how many forwards must it "
        "send on before it may wait?",
        "all-first": "That is GPipe: every stage holds all microbatches. As soon as the first "
        "gradient comes back, begin with backwards.",
        "holds": "This stage does a forward when it should do a backward. How many stages are "
        "behind it, and so, how many microbatches must it have on their way?",
        "slow": "Draw its timetable: a stage waits for a gradient while it could do a forward, or "
        "takes a backward that others are not ready for.",
        "more-stages": "With as many stages as ranks it came out. Work with the arguments stage "
        "and num_stages alone: they are not the rank and the ranks that run.",
        "raised": "The line that is named is yours. Think of one stage alone, of the last stage, "
        "and of fewer microbatches than stages.",
        "forbidden": "No message is needed: the row follows from the three arguments.",
        "kept": "Make the row anew in each call.",
    },
    allowed=(),
    warm_up=import_compiler,
)
