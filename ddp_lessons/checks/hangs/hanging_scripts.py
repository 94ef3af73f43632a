"""
Task 10.4: mend four scripts that hang.
"""

from random import Random

import torch

from ddp_lessons.checks.kit import Case, Task, equal, whole_numbers
from ddp_lessons.checks.kit.ends import BLANK
from ddp_lessons.checks.kit.inside.plain import plain
from ddp_lessons.pictures import timeline_picture, timeline_tracks
from ddp_lessons.trace import merge

NUM_SCRIPTS = 4
LOGS, UNEVEN, STOPS, PARTS = 1, 2, 3, 4
_STEPS = 4
_LARGE = 4


def _cases(draw):
    yield Case(4, {"script": LOGS}, seed=0)
    for script in (LOGS, UNEVEN, STOPS, PARTS):
        yield Case(draw.choice((2, 3)), {"script": script})
    yield Case(4, {"script": UNEVEN})
    yield Case(4, {"script": STOPS})
    yield Case(4, {"script": PARTS})  # on 2 ranks one tensor would do for all other parts
    for script in (STOPS, PARTS):
        yield Case(1, {"script": script})


def arguments(case, rank):
    """
    Return what a rank gives its script.
    """
    rng = Random(case.seed)
    if case["script"] == LOGS:
        return (list(_numbers(case, rank, (_STEPS, 1))),)
    if case["script"] == UNEVEN:
        counts = rng.sample(range(case.world_size + 1), case.world_size)
        if case.world_size == _LARGE:
            # A rank has none, and it is not rank 0 that has most: it would speak for all.
            counts = [1, *rng.sample((0, 2, 3), _LARGE - 1)]
        return (list(_numbers(case, rank, (counts[rank], 3))),)
    if case["script"] == STOPS:
        losses, limit = _losses(case, rng)
        return _numbers(case, f"weights {rank}", (4,)), list(losses[rank]), limit
    return (whole_numbers(case, f"script {rank}", (2,), most=999),)  # no two ranks have the same


def _losses(case, rng):
    """
    Return all ranks' losses, (w, steps, 1), and the limit of their sum.

    The sum falls, and is just small enough in one step. Before that one rank's own loss is small,
    and in that step and the next another one's is still large. Rank 0 is one of these two.
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


def _act(here, hanging_scripts):
    number = here["script"]
    found = list(hanging_scripts() or ())
    if len(found) != NUM_SCRIPTS:
        return {"end": "not four", "num_scripts": len(found)}
    given = [_on(here.device, one) for one in arguments(here.case, here.rank)]
    try:
        here.call(found[number - 1], *given)
    except NotImplementedError as error:
        if number == 1 or BLANK not in str(error):
            raise
        return {"end": "blank"}
    return {"end": ""}


def _on(device, one):
    if isinstance(one, list):
        return [tensor.to(device) for tensor in one]
    return one.to(device) if isinstance(one, torch.Tensor) else one


def _judge(played):
    kept, number = [seen.kept for seen in played.seen], played.case["script"]
    for rank, one in enumerate(kept):
        if one["end"] == "not four":
            fact = f"The number of functions that it returns is {one['num_scripts']}."
            raise played.wrong("not-four", rank, fact=fact)
    if any(one["end"] == "blank" for one in kept):
        fact = f"script_{number} {BLANK}; those before it are mended."
        raise played.wrong("unfinished", fact=fact)
    {LOGS: _judge_logs, UNEVEN: _judge_uneven, STOPS: _judge_stops, PARTS: _judge_parts}[number](
        played
    )


def _all(case):
    return [arguments(case, rank) for rank in range(case.world_size)]


def _judge_logs(played):
    sums = torch.stack([torch.cat(losses) for (losses,) in _all(played.case)])
    expected, own = sums.sum(0).tolist(), sums[0].tolist()
    got = played.results[0]
    both = {"got": got, "expected": expected}
    is_list = isinstance(got, list | tuple)
    is_list = is_list and not any(isinstance(one, torch.Tensor) for one in got)
    numbers = _numbers_of(got) if is_list else None
    if numbers is None or len(numbers) != len(expected):
        fact = "script_1: rank 0 must return a list of numbers, a sum for each loss."
        raise played.wrong("no-log", 0, **both, fact=fact)
    w = played.case.world_size
    if numbers == expected:
        told = [event for event in played.traces[0] if event.is_communication]
        if w > 1 and told and all(one.name == "reduce" and one.peer for one in told):
            fact = f"script_1: it reduces to rank {told[0].peer}. What rank 0 has then is luck."
            raise played.wrong("other-root", 0, fact=fact)
        return
    if numbers == own and w > 1:
        fact = "script_1: these are rank 0's own losses."
        raise played.wrong("alone", 0, **both, fact=fact)
    if numbers == [one / w for one in expected]:
        fact = "script_1: these are means."
        raise played.wrong("means", 0, **both, fact=fact)
    raise played.wrong("values", 0, **both, fact="script_1: these are not the sums.")


def _numbers_of(got):
    try:
        return [float(one) for one in got]
    except (TypeError, ValueError, RuntimeError):
        return None


def _judge_uneven(played):
    every = [batches for (batches,) in _all(played.case)]
    expected = _sum_of(every)
    fewest = min(map(len, every))
    cut, cut_at_0 = (_sum_of([those[:most] for those in every]) for most in (fewest, len(every[0])))
    own = [sum(those, torch.zeros(3)) for those in every]
    are_own = all(map(equal, own, played.results))
    for rank, got in enumerate(played.results):
        both = {"got": got, "expected": expected}
        if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
            fact = "script_2: it must return a tensor (3,)."
            raise played.wrong("no-total", rank, **both, fact=fact)
        if equal(got.float(), plain(expected)):
            continue
        if are_own:
            fact = "script_2: this is the sum of its own batches."
            raise played.wrong("alone", rank, **both, fact=fact)
        if equal(got, cut) or equal(got, cut_at_0):
            fact = "script_2: the batches that only some ranks have are not in the sum."
            raise played.wrong("lost-batches", rank, **both, fact=fact)
        fact = "script_2: this is not the sum of all batches."
        raise played.wrong("values", rank, **both, fact=fact)


def _sum_of(every):
    return sum((torch.stack(those).sum(0) for those in every if those), torch.zeros(3))


def _judge_stops(played):
    case = played.case
    losses, limit = _losses(case, Random(case.seed))
    w, sums = case.world_size, losses.sum(0).flatten().tolist()
    expected = 1 + next(step for step, total in enumerate(sums) if total <= limit)
    for rank, got in enumerate(played.results):
        both = {"got": got, "expected": expected}
        number = _numbers_of([got])
        if number is None:
            fact = "script_3: it must return the number of steps."
            raise played.wrong("no-number", rank, **both, fact=fact)
        if number != [expected]:
            fact = "script_3: it does not stop after the step whose losses add up to so little."
            mistake = _how_stopped(losses, limit, number[0])
            raise played.wrong(mistake, rank, **both, fact=fact)
    total = sum(weights for weights, _, _ in _all(case))
    for rank, seen in enumerate(played.seen):
        weights, right = seen.calls[-1].after[0], total * w ** (expected - 1)
        if not equal(weights, plain(right)):
            fact = "script_3: `weights` are not those of so many steps, one sum a step."
            raise played.wrong("weights", rank, got=weights, expected=right, fact=fact)


def _how_stopped(losses, limit, got):
    w, of_rank, sums = len(losses), losses[:, :, 0], losses[:, :, 0].sum(0)

    def first(is_small):
        return 1 + next((step for step, small in enumerate(is_small) if small), len(is_small))

    own = of_rank <= limit / w
    if w > 1 and got in (first(own.any(0)), first(own.all(0)), *map(first, own)):
        return "other-rule"
    return "at-limit" if got == first(sums < limit) else "steps"


def _judge_parts(played):
    expected = [part for (part,) in _all(played.case)]
    for rank, got in enumerate(played.results):
        both = {"got": got, "expected": expected}
        if not isinstance(got, list | tuple) or len(got) != len(expected):
            fact = "script_4: it must return a list of a part for each rank."
            raise played.wrong("no-parts", rank, **both, fact=fact)
        right = [plain(part) for part in expected]
        if all(map(equal, right, got)):
            continue
        places = [next((r for r, two in enumerate(right) if equal(two, one)), None) for one in got]
        if sorted(places, key=str) == [*range(len(right))]:
            fact = "script_4: the parts are not in rank order."
            raise played.wrong("rank-order", rank, **both, fact=fact)
        fact = "script_4: a part is not that of its rank."
        raise played.wrong("values", rank, **both, fact=fact)


def _draw(played):
    return timeline_picture(timeline_tracks(merge(played.traces)), "events of script 1, in order")


hanging_scripts = Task(
    number="10.4",
    name="hanging_scripts",
    cases=_cases,
    act=_act,
    judge=_judge,
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
    mistakes={
        "deadlock": "The lines that are named wait for one another. Move the call out of what only "
        "some ranks do, or let all do it equally often and in the same order.",
        "unfinished": "Mend one script after the other, and check after each.",
        "not-four": "Let `hanging_scripts` return all four functions, in order, as it did.",
        "alone": "That hangs no more because nobody talks. The result is one of all ranks.",
        "no-log": "Keep the log: a number for each loss, in order, on rank 0.",
        "other-root": "A reduce gives the sum to the rank that it names, and to no other.",
        "means": "The sum is wanted, as before.",
        "lost-batches": "No batch may be left out because another rank has none to go with it.",
        "no-total": "Return the sum over all batches, also on a rank that has none.",
        "no-number": "Return how many steps were made.",
        "other-rule": "One rank's own loss does not decide, nor that of all by themselves: it is "
        "the sum of all losses that has to be at most `limit`.",
        "at-limit": "The sum may be as large as `limit`: at most is not below.",
        "steps": "Count a step when its weights are added up, and then ask if it was the last: if "
        "the sum of all losses is at most `limit` itself, which is not divided by anything.",
        "weights": "Each step adds `weights` up over all ranks, in place and once.",
        "no-parts": "Return a list with a part for each rank.",
        "rank-order": "Let the place in the list be the rank that owns the part.",
        "values": "Compare with what stands above the script: what goes in, and what comes out.",
    },
    in_place=True,
    returns=False,
)
