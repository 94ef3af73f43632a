"""
Task 10.4: mend four scripts that hang.

On each rank: `_act`, `_on`; in both: `arguments`, `_losses`, `_numbers`. In the kernel: the rest.
"""

from dataclasses import replace
from random import Random

import torch

from ddp_lessons.checks.kit import (
    VALUES,
    Case,
    Expected,
    Mistake,
    Task,
    View,
    equal,
    whole_numbers,
    words,
)
from ddp_lessons.checks.kit.case_failures import BLANK
from ddp_lessons.checks.kit.on_rank.snapshots import plain
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import merge

NUM_SCRIPTS, _STEPS, _LARGE = 4, 4, 4
LOGS, UNEVEN, STOPS, PARTS = 1, 2, 3, 4


def _cases(draw):
    yield Case(4, {"script": LOGS}, seed=0)
    for script in (LOGS, UNEVEN, STOPS, PARTS):
        yield Case(draw.choice((2, 3)), {"script": script})
    yield Case(4, {"script": UNEVEN})
    yield Case(4, {"script": STOPS})
    yield Case(4, {"script": PARTS})  # on 2 ranks, one buffer is enough for other ranks' parts
    for script in (STOPS, PARTS):
        yield Case(1, {"script": script})


def arguments(case, rank):
    """
    Return the arguments of a rank's script, as a tuple.
    """
    rng = Random(case.seed)
    if case["script"] == LOGS:
        return (list(_numbers(case, rank, (_STEPS, 1))),)
    if case["script"] == UNEVEN:
        counts = rng.sample(range(case.world_size + 1), case.world_size)
        if case.world_size == _LARGE:
            # One rank has no batches. Rank 0 does not have most: its number must not count for all.
            counts = [1, *rng.sample((0, 2, 3), _LARGE - 1)]
        return (list(_numbers(case, rank, (counts[rank], 3))),)
    if case["script"] == STOPS:
        losses, limit = _losses(case, rng)
        return _numbers(case, f"weights {rank}", (4,)), list(losses[rank]), limit
    return (whole_numbers(case, f"script {rank}", (2,), most=999),)  # different on each rank


def _losses(case, rng):
    """
    Return all ranks' losses, (w, steps, 1), and the limit of their sum.

    The sum falls to the limit in one step. Before it, the loss of one rank is small already; in it
    and in the next step, the loss of another rank is still large. Rank 0 is one of the two ranks.
    """
    w, limit = case.world_size, 10 * case.world_size
    last = rng.randint(3, _STEPS)
    losses = torch.full((w, _STEPS + 3, 1), 40.0)
    losses[:, last - 1 :] = 5.0
    if w > 1:
        early, late = rng.sample([0, rng.randrange(1, w)], 2)
        losses[early] = 1.0
        losses[late, last - 1] = limit - 1 - 5 * (w - 2)  # so that the sum is the limit
        losses[late, last] = limit / w + 1
    return losses, limit


def _numbers(case, name, shape):
    return whole_numbers(case, f"script {name}", shape)


def _act(context, hanging_scripts):
    number = context["script"]
    found = list(hanging_scripts() or ())
    if len(found) != NUM_SCRIPTS:
        return {"end": "not four", "num_scripts": len(found)}
    given = [_on(context.device, one) for one in arguments(context.case, context.rank)]
    try:
        context.call(found[number - 1], *given)
    except NotImplementedError as error:
        if number == 1 or BLANK not in str(error):
            raise
        return {"end": "blank"}
    return {"end": ""}


def _on(device, one):
    if isinstance(one, list):
        return [tensor.to(device) for tensor in one]
    return one.to(device) if isinstance(one, torch.Tensor) else one


def _in_script(number):
    """
    Return a decorator that limits a `shows` to one script, and puts its name before the fact.
    """

    def only_there(fact_of):
        def shows(view):
            is_there = view.case["script"] == number and not view.output["end"]
            fact = is_there and fact_of(view)
            return fact and f"script_{number}: {fact}"

        return shows

    return only_there


def _all(case):
    return [arguments(case, rank) for rank in range(case.world_size)]


def _right(case, rank):
    """
    Return the right result of a rank; None if any result is right.
    """
    given = _all(case)
    if case["script"] == LOGS:
        sums = torch.stack([torch.cat(losses) for (losses,) in given]).sum(0)
        return None if rank else sums.tolist()
    if case["script"] == UNEVEN:
        return plain(_sum_of([batches for (batches,) in given]))
    if case["script"] == STOPS:
        losses, limit = _losses(case, Random(case.seed))
        sums = losses.sum(0).flatten().tolist()
        return 1 + next(step for step, total in enumerate(sums) if total <= limit)
    return [plain(part) for (part,) in given]


def _gave(view):
    got, number = view.case_result.results[view.rank], view.case["script"]
    if view.output["end"] or (number == LOGS and view.rank):
        return view.output["end"] or None
    if number == LOGS:
        is_list = isinstance(got, list | tuple) and not any(map(torch.is_tensor, got))
        return (_numbers_of(got) if is_list else None) or words(got)
    if number == UNEVEN and isinstance(got, torch.Tensor):
        return got.float()
    if number == STOPS:
        return (_numbers_of([got]) or [words(got)])[0]
    return list(got) if isinstance(got, tuple) else got


def _numbers_of(got):
    try:
        return [float(one) for one in got]
    except (TypeError, ValueError, RuntimeError):
        return None


def _sum_of(every):
    return sum((torch.stack(those).sum(0) for those in every if those), torch.zeros(3))


@_in_script(LOGS)
def _reduces_elsewhere(view):
    calls = [event for event in view.events if event.is_communication]
    is_elsewhere = calls and all(one.name == "reduce" and one.peer for one in calls)
    return (
        not view.rank
        and is_elsewhere
        and (f"it reduces to rank {calls[0].peer}. What rank 0 has then is luck.")
    )


def _is_own(view):
    case = view.case
    if case.world_size == 1 or case["script"] not in (LOGS, UNEVEN) or not view.is_off:
        return False
    ranks = [0] if case["script"] == LOGS else range(case.world_size)
    views = [View(view.case_result, rank) for rank in ranks]
    givens = [arguments(case, one.rank)[0] for one in views]
    own = [torch.cat(one).tolist() if case["script"] == LOGS else _sum_of([one]) for one in givens]
    return all(one.is_near(value) for one, value in zip(views, own, strict=True))


def _some_batches(case, rank):
    if case["script"] != UNEVEN:
        return []
    every = [batches for (batches,) in _all(case)]
    return [_sum_of([those[:n] for those in every]) for n in (min(map(len, every)), len(every[0]))]


def _other_stops(case, rank):
    if case["script"] != STOPS or case.world_size == 1:
        return []
    losses, limit = _losses(case, Random(case.seed))
    own = losses[:, :, 0] <= limit / case.world_size
    small = losses[:, :, 0].sum(0) <= limit / case.world_size
    rules = (own.any(0), own.all(0), *own, losses[:, :, 0].sum(0) < limit, small)
    return [
        next((step for step, is_small in enumerate(rule, start=1) if is_small), len(rule))
        for rule in rules
    ]


@_in_script(STOPS)
def _has_other_weights(view):
    total = plain(sum(weights for weights, _, _ in _all(view.case)))
    right = total * view.case.world_size ** (view.expected - 1)
    got = view.seen.calls[-1].after[0]
    return (
        not view.is_off
        and not equal(got, right)
        and (f"`weights` are {words(got)}; so many steps, one sum a step, make {words(right)}.")
    )


@_in_script(PARTS)
def _has_another_order(view):
    if not (view.is_off and isinstance(view.got, list)):
        return ""
    right = view.expected
    places = [next((r for r, two in enumerate(right) if equal(two, one)), None) for one in view.got]
    return sorted(places, key=str) == [*range(len(right))] and "the parts are not in rank order."


def _draw(case_result):
    return timeline_picture(
        timeline_tracks(merge(case_result.traces)), "events of script 1, in order"
    )


hanging_scripts = Task(
    number="10.4",
    name="hanging_scripts",
    cases=_cases,
    act=_act,
    ok="4 of 4 scripts end, and do what they were meant to",
    draw=_draw,
    hints=(
        "Write down for two ranks what each calls, line by line. Which call has no partner?",
        "A collective belongs where all ranks come by, equally often and in the same order: "
        "outside of what depends on the rank, or on its data.",
        "Script 1: who asks, and who needs the answer? Script 2: must each batch be sent? Script "
        "3: who decides, and by what? Script 4: whose turn is it?",
        "1: all call reduce. 2: add up first, then one all_reduce. 3: all_reduce the loss, then "
        "compare. 4: for owner in range(world_size).",
    ),
    expected=Expected(_right, gave=_gave),
    mistakes=(
        Mistake(
            "not-four",
            "Let `hanging_scripts` return all four functions, in order, as it did.",
            shows=lambda view: (
                view.output["end"] == "not four"
                and f"The number of functions that it returns is {view.output['num_scripts']}."
            ),
        ),
        Mistake(
            "unfinished",
            "Mend one script after the other, and check after each.",
            shows=lambda view: (
                view.output["end"] == "blank"
                and f"script_{view.case['script']} {BLANK}; those before it are mended."
            ),
        ),
        Mistake(
            "alone",
            "That hangs no more because nobody talks. The result is one of all ranks.",
            "It returns what comes of this rank's own.",
            shows=_is_own,
        ),
        Mistake(
            "lost-batches",
            "No batch may be left out because another rank has none to go with it.",
            "script_2: the batches that only some ranks have are not in the sum.",
            gives=_some_batches,
        ),
        Mistake(
            "other-rule",
            "It is the sum of all ranks' losses that has to be at most `limit` itself: not one "
            "rank's own, nor below it, nor at most a part of it.",
            "script_3: it does not stop after the step whose losses add up to so little.",
            gives=_other_stops,
        ),
        Mistake(
            "rank-order",
            "Let the place in the list be the rank that owns the part.",
            shows=_has_another_order,
        ),
        replace(
            VALUES,
            hint="Compare with what stands above the script that is named: what goes in, what "
            "comes out, on which rank, and as what: a list of numbers, a tensor, a number, a list "
            "of tensors. In script 3 a step counts when its weights are added up.",
            symptom="This is not what the script is meant to return.",
        ),
        Mistake(
            "other-root",
            "A reduce gives the sum to the rank that it names, and to no other.",
            shows=_reduces_elsewhere,
        ),
        Mistake(
            "weights",
            "Each step adds `weights` up over all ranks, in place and once.",
            shows=_has_other_weights,
        ),
        Mistake(
            "deadlock",
            "The lines that are named wait for one another. Move the call out of what only some "
            "ranks do, or let all do it equally often and in the same order.",
        ),
    ),
    in_place=True,
    must_return=False,
)
