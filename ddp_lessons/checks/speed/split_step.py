"""
Task 11.1: split a step.

On each rank: `_act`. In the kernel: the rest.
"""

from random import Random

import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Task
from ddp_lessons.checks.speed.runs import NestedStep, gathered_tracks, in_ms, numbers_of
from ddp_lessons.costs import Link
from ddp_lessons.pictures import timeline_plot
from ddp_lessons.speed import difference, intersection, last_calls, length, split_steps
from ddp_lessons.speed import in_ms as tracks_in_ms
from ddp_lessons.speed.splitting import of_kind

PARTS = ("compute", "communication", "waiting", "hidden")

MOST_OFF_S = 1e-6  # sums of a few times in float64 are off by a millionth of this limit

_LATENCY_S = 0.001


def _cases(draw):
    yield Case(4, {"late rank": 2, "late ms": 12, "buckets": 3}, seed=1)
    for world_size, num_buckets in ((2, 3), (3, 2), (4, 1)):
        late = {"late rank": draw.randrange(world_size), "late ms": draw.randint(8, 14)}
        yield Case(world_size, {**late, "buckets": num_buckets})
    yield Case(1, {"late rank": 0, "late ms": 0, "buckets": 2})


def _act(context, split_step):
    draw = Random(context.case.seed)
    parts_s = [draw.uniform(0.010, 0.014) for _ in range(context["buckets"])]
    sizes = [48 * draw.randint(1000, 3000) for _ in parts_s]
    link = Link(_LATENCY_S, draw.uniform(10e6, 20e6))
    step = NestedStep(draw.uniform(0.004, 0.008), parts_s, sizes, link, optimizer_s=0.004)
    late_s = context["late ms"] / 1e3 if context.rank == context["late rank"] else 0.0
    dist.barrier()
    spans = step.run(late_s) + step.inner
    # On odd ranks the last all-reduce is listed first.
    spans.sort(key=lambda span: (span[0], span[1]), reverse=context.rank % 2 == 1)
    context.call(split_step, gathered_tracks(spans))


def _judge(case_result):
    for seen in case_result.seen:
        call = seen.calls[-1]
        tracks, w = call.before[0], case_result.case.world_size
        rows = [numbers_of(row, len(PARTS)) for row in _rows_of(call.result)]
        if len(rows) != w or None in rows:
            fact = f"It must return {w} rows, one a rank, each of {len(PARTS)} numbers."
            raise case_result.wrong("no-rows", seen.rank, got=call.result, fact=fact)
        right = [_right(split) for split in split_steps(tracks)]
        for place, part in enumerate(PARTS):
            got_s, right_s = ([row[place] for row in of] for of in (rows, right))
            off = [rank for rank in range(w) if not _is_near(got_s[rank], right_s[rank])]
            if off:
                both = f"{in_ms(got_s[off[0]])} of {part}; it is {in_ms(right_s[off[0]])}."
                mistake = _mistake(tracks, part, got_s, right_s)
                raise case_result.wrong(mistake, seen.rank, fact=f"Of rank {off[0]} it says {both}")


def _rows_of(result):
    if hasattr(result, "tolist"):
        result = result.tolist()
    return result if isinstance(result, list | tuple) else []


def _right(split):
    return split.compute_s, split.communication_s, split.waiting_s, split.hidden_s


def _is_near(got_s, expected_s):
    return abs(got_s - expected_s) <= MOST_OFF_S


def _mistake(tracks, part, got_s, right_s):
    """
    Return the first mistake that explains the numbers of all ranks for this part of a step.
    """
    recipes = [("unit", part, [1e3 * one_s for one_s in right_s]), *_recipes(tracks)]
    for name, wanted, of_ranks in recipes:
        if wanted == part and all(map(_is_near, of_ranks, got_s)):
            return name
    return f"{part}-off"


def _recipes(tracks):
    """
    Return the numbers that common mistakes give: (mistake, part, seconds of each rank).
    """
    last_s = last_calls(tracks)
    compute = [of_kind(track, "compute") for track in tracks]
    calls = [of_kind(track, "communication") for track in tracks]
    as_listed = [[span[1:3] for span in track if span[0] == "communication"] for track in tracks]
    listed_last_s = [max(pair[0] for pair in met) for met in zip(*as_listed, strict=True)]
    recipes = []

    def add(mistake, part, function, others=calls, moments_s=last_s):
        values = [
            function(own, *_before_and_after(its, moments_s), its)
            for own, its in zip(compute, others, strict=True)
        ]
        recipes.append((mistake, part, values))

    add("nested", "compute", lambda own, before, after, its: _sum(own))
    add("less-hidden", "compute", lambda own, before, after, its: length(difference(own, its)))
    add("all-talk", "communication", lambda own, before, after, its: length(difference(its, own)))
    add("not-hidden", "communication", lambda own, before, after, its: length(after))
    add("not-hidden", "communication", lambda own, before, after, its: length(its))
    add("not-hidden", "communication", lambda own, before, after, its: _sum(its))
    add("not-hidden", "communication", lambda own, before, after, its: _sum(after))
    add("twice", "communication", lambda own, before, after, its: _each(after, own))
    add("twice", "communication", lambda own, before, after, its: _each(its, own))
    add("twice", "communication", _talk_of_each)
    add(
        "both-at-once",
        "communication",
        lambda own, before, after, its: length(difference(difference(after, before), own)),
    )
    for part, function in (("communication", _talk), ("waiting", _wait), ("waiting", _wait_alone)):
        add("order", part, function, as_listed, listed_last_s)
    add("not-hidden", "waiting", lambda own, before, after, its: length(difference(before, after)))
    add("not-hidden", "waiting", lambda own, before, after, its: length(before))
    add("not-hidden", "waiting", lambda own, before, after, its: _sum(before))
    add("both-at-once", "waiting", _wait_alone)
    add("twice", "waiting", lambda own, before, after, its: _each(before, own))
    add("no-waiting", "waiting", lambda own, before, after, its: 0.0)
    add("all-waits", "waiting", lambda own, before, after, its: length(difference(its, own)))
    add("all-waits", "communication", lambda own, before, after, its: 0.0)
    add("rest", "waiting", _rest)
    add("hidden-twice", "hidden", lambda own, before, after, its: _both(its, own))
    add("hidden-twice", "hidden", lambda own, before, after, its: _both(own, its))
    add("hidden-twice", "hidden", lambda own, before, after, its: _pairs(its, own))
    add("hidden-late", "hidden", lambda own, before, after, its: length(intersection(after, own)))
    return recipes


def _before_and_after(calls, moments_s):
    met = list(zip(calls, moments_s, strict=True))
    before = [(start, max(start, min(end, moment))) for (start, end), moment in met]
    return before, [(min(end, max(start, moment)), end) for (start, end), moment in met]


def _talk(own, before, after, its):
    return length(difference(after, own))


def _talk_of_each(own, before, after, its):
    return sum(length(difference(intersection([one], after), own)) for one in its)


def _wait(own, before, after, its):
    return length(difference(difference(before, after), own))


def _wait_alone(own, before, after, its):
    return length(difference(before, own))


def _rest(own, before, after, its):
    step_s = max(end for _, end in own + its) - min(start for start, _ in own + its)
    return step_s - length(own) - _talk(own, before, after, its)


def _sum(intervals):
    return sum(end - start for start, end in intervals)


def _each(intervals, taken):
    return sum(length(difference([one], taken)) for one in intervals)


def _both(intervals, others):
    return sum(length(intersection([one], others)) for one in intervals)


def _pairs(intervals, others):
    return sum(length(intersection([one], [other])) for one in intervals for other in others)


def _draw(case_result):
    tracks = tracks_in_ms(case_result.before[0])
    return timeline_plot(tracks, "time in ms: the step that was split")


split_step = Task(
    number="11.1",
    name="split_step",
    twice=True,
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="all four parts of every rank, to the microsecond",
    draw=_draw,
    hints=(
        "Draw two ranks on paper, one of them late: a line for compute, a line for each "
        "all-reduce. Every moment of a rank belongs to one part only, and hidden is a part of "
        "compute.",
        "Cut the time of a rank at every start and every end, of all ranks. Between two cuts "
        "nothing changes, so one look at each piece says what it is.",
        "An all-reduce that has begun can move on when the last rank has called it: the largest "
        "of the k-th starts over all ranks, each rank's sorted by start.",
        "For each piece from a to b: computes = any(s <= a < e for a compute span); open = the k "
        "with s_k <= a < e_k; talks = any(last[k] <= a for k in open).",
    ),
    mistakes={
        "no-rows": "Return a list with a row for each rank: compute, communication, waiting, "
        "hidden, in seconds.",
        "unit": "Return seconds.",
        "nested": "A span of compute may lie inside another. A moment in which a rank computes "
        "counts once.",
        "less-hidden": "What is hidden is compute all the same: it stays in its time.",
        "not-hidden": "While a rank computes it neither waits nor does it do nothing but talk: "
        "that part is hidden.",
        "twice": "Two all-reduces may be under way at once. A moment counts once.",
        "both-at-once": "While one all-reduce moves on, a rank talks, whatever else it waits for.",
        "all-talk": "As long as one rank has not called, nothing can move, though the call of "
        "others is under way. What counts is the last rank's call.",
        "no-waiting": "Look at the rank that comes last to an all-reduce: until then the others "
        "wait.",
        "all-waits": "When the last rank has called, what is left of an all-reduce is "
        "communication.",
        "order": "Spans come in no order. Sort each rank's all-reduces by their starts before you "
        "match them.",
        "rest": "A rank may do nothing that was recorded. Waiting is what lies inside of an "
        "all-reduce, and not all that is left over.",
        "hidden-twice": "Two all-reduces, or two spans of compute, may be under way at once. Such "
        "a moment is hidden once.",
        "hidden-late": "Also a wait is hidden by what a rank computes meanwhile: hidden counts "
        "from its own call on.",
        "compute-off": "Put together all moments in which the rank computes, each once, by exact "
        "starts and ends.",
        "communication-off": "Communication: it does not compute, and an all-reduce of its own is "
        "under way, from its own call to its own end, that all ranks have called.",
        "waiting-off": "Waiting: it does not compute, and of its all-reduces under way none has "
        "been called by all.",
        "hidden-off": "Hidden: it computes, and an all-reduce of its own is under way.",
        "raised": "The line that is named is yours. One rank alone has no all-reduce, and the "
        "numbers of spans differ.",
        "forbidden": "Every rank has all spans already: send nothing.",
    },
    allowed=(),
)
