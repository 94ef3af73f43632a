"""
Task 11.2: find the straggler.

On each rank: `_act`, `_noted`, `_played`, `_own_s`. In the kernel: the rest.
"""

import time
from random import Random
from statistics import mean, median, median_high, median_low

import torch
import torch.distributed as dist

from ddp_lessons.checks.kit import Case, Mistake, Task, words
from ddp_lessons.checks.speed.runs import number_of
from ddp_lessons.pictures import timeline_plot

CLEAR = 1.25
_IN_DOUBT = 1.02  # so near to the limit, rounding or another kind of median may decide
_NUM_BYTES = 8
_ONE_OF_TWO = (median_low, median_high)
_BASE_S, _WARM_UP_S, _PAUSE_S = 0.012, 0.050, 0.060
_QUICK_STEP = 3  # in this step the straggler is not slow

_AT_LIMIT = "just at the limit"
_NOTED = {
    # compute of a slow rank in each step, in seconds that floats hold exactly; others need 1 s
    _AT_LIMIT: (9.0, 1.25, 1.25, 1.25),
    "hardly above the limit": (9.0, *3 * (1.25 + 2**-10,)),
    "longer, by two in the middle": (9.0, 1.0, 1.25, 1.5, 3.0),
    "not so, by two in the middle": (9.0, 1.0, 1.0, 1.375, 3.0),
    "no longer than another": (9.0, 4.0, 4.0, 4.0),
}


def _cases(draw):
    roles = {"slow": 2, "interrupted": 1, "logs": 0, "clock": 3}
    yield Case(4, {"times slower": 2.0, **roles}, seed=0)
    for world_size in (3, 4):
        slow, other, last = draw.sample(range(world_size), 3)
        roles = {"slow": slow, "interrupted": other, "logs": last, "clock": last}
        yield Case(world_size, {"times slower": 1.0, **roles})
    first, second, third, last = draw.sample(range(4), 4)
    roles = {"slow": first, "interrupted": last, "logs": third, "clock": second}
    yield Case(4, {"times slower": 2.2, **roles, "slow as well": second})
    for world_size in (2, 3, 4):
        # With two ranks it is rank 0: this finds an answer that takes 0 for None.
        ranks = draw.sample(range(world_size), world_size) if world_size > 2 else [0, 1]
        roles = {"slow": ranks[0], "interrupted": ranks[1], "logs": ranks[-1], "clock": ranks[-1]}
        yield Case(world_size, {"times slower": round(draw.uniform(1.7, 2.2), 1), **roles})
    yield Case(1, {"times slower": 2.0, "slow": 0, "interrupted": 0, "logs": 0, "clock": 0})
    for kind in _NOTED:  # 3 or 4 ranks: with 2, several wrong rules may agree
        if kind == "no longer than another":
            slow, as_well = draw.sample(range(4), 2)
            yield Case(4, {"one rank is": kind, "slow": slow, "slow as well": as_well})
            continue
        world_size = draw.randint(3, 4)
        yield Case(world_size, {"one rank is": kind, "slow": draw.randrange(world_size)})


def _act(context, find_straggler):
    steps = _noted if "one rank is" in context.case.data else _played
    context.call(find_straggler, steps(context))


def _noted(context):
    start_s, steps = 64.0 * (context.rank + 1), []  # whole seconds: all differences are exact
    for slow_s in _NOTED[context["one rank is"]]:
        is_slow = context.rank in (context["slow"], context.case.data.get("slow as well"))
        call_s = start_s + (slow_s if is_slow else 1.0)
        steps.append((start_s, call_s, start_s + 12.0))
        start_s += 12.0
    return steps


def _played(context):
    draw = Random(f"{context.case.seed} {context.rank}")
    # A clock starts when its machine does: so the clocks of the ranks differ by minutes.
    ahead_s = draw.uniform(100, 200) + 1000 * (context.rank == context["clock"])
    steps, tensor = [], torch.zeros(1, device=context.device)
    for number in range(4):
        dist.barrier()
        start_s = time.monotonic()
        time.sleep(_own_s(context, number))
        call_s = time.monotonic()
        dist.all_reduce(tensor)
        if context.rank != context["slow"]:
            time.sleep(0.014 if context.rank == context["logs"] else 0.002)  # it writes its log
        end_s = time.monotonic()
        steps.append(tuple(ahead_s + moment_s for moment_s in (start_s, call_s, end_s)))
    return steps


def _own_s(context, number):
    own_s = _BASE_S
    slow_ranks = (context["slow"], context.case.data.get("slow as well"))
    if context.rank in slow_ranks and number != _QUICK_STEP:
        own_s *= context["times slower"]
    if context.rank == context["interrupted"]:
        own_s += {0: _WARM_UP_S, 2: _PAUSE_S}.get(number, 0.0)
    return own_s


def _number(result):
    """
    Return an answer as a whole number or None; the text "?" if it is neither.
    """
    number = number_of(result) if result is not None else None
    is_whole = number is not None and float(number).is_integer()
    return int(number or 0) if is_whole else None if result is None else "?"


def _is_no_rank(view):
    number = _number(view.got)
    is_rank = number is None or (number != "?" and 0 <= number < view.case.world_size)
    return not is_rank and f"It returns {words(view.got)}, and no rank or None."


def _asks_nobody(view):
    talks = any(view.case_result.call_names)
    return view.case.world_size > 1 and not talks and view.case_result.call == "first"


def _disagrees(view):
    first, own = _number(view.case_result.results[0]), _number(view.got)
    return own != first and f"Rank 0 says {first}, rank {view.rank} says {own}."


class _Wrong:
    """
    An answer, with the times that it was given and the answers that would be right.

    Args:
        view: The View.
    """

    def __init__(self, view):
        self.steps, self.got = view.case_result.before, _number(view.got)
        self.own_s = [[call_s - start_s for start_s, call_s, _ in own] for own in self.steps]
        self.kind = view.case.data.get("one rank is")
        self.medians_s = [median(own[1:]) for own in self.own_s]
        self.right = _right(self.medians_s, 1.0 if self.kind else _IN_DOUBT)


def _if_wrong(is_so):
    """
    Return a `shows` that tells whether an answer is wrong and `is_so` holds for its `_Wrong`.
    """

    def shows(view):
        wrong = _Wrong(view)
        return wrong.got not in wrong.right and is_so(wrong) and _told(wrong.own_s, wrong.got)

    return shows


def _is_largest_of(*rows_of):
    """
    Return a `shows` that tells whether the named rank has the largest of some values.
    """
    return _if_wrong(
        lambda wrong: any(
            wrong.got == row.index(max(row)) for row in (row_of(wrong) for row_of in rows_of)
        )
    )


def _of_own(middle, first=0):
    return lambda wrong: [middle(own[first:]) for own in wrong.own_s]


def _takes_one_of_two(wrong):
    others = (_right([middle(own[1:]) for own in wrong.own_s], 1.0) for middle in _ONE_OF_TWO)
    return wrong.kind and any(wrong.got in those for those in others)


def _is_nobody(wrong):
    own_s = wrong.medians_s[wrong.got]
    is_long = own_s == max(wrong.medians_s) or own_s > CLEAR * median(wrong.medians_s)
    return wrong.right == {None} and is_long


def _calls_too_much(view):
    sent = [event.input_bytes for event in view.events if event.is_communication]
    most = _NUM_BYTES * view.case.world_size
    if len(sent) > 1 or sum(sent) > most:
        return f"It made {len(sent)} calls of {sum(sent)} bytes; one of {most} is enough."
    return ""


def _right(medians_s, in_doubt):
    """
    Return the accepted answers: both None and a rank if a measured time is close to the limit.
    """
    if len(medians_s) == 1:
        return {None}
    *_, second_s, first_s = sorted(medians_s)
    times_longer, rank = first_s / second_s, medians_s.index(first_s)
    if times_longer > CLEAR * in_doubt:
        return {rank}
    return {None} if times_longer <= CLEAR / in_doubt else {None, rank}


def _told(own_s, got):
    rows = "; ".join(
        f"rank {rank} " + ", ".join(f"{1e3 * one_s:.1f}" for one_s in own)
        for rank, own in enumerate(own_s)
    )
    return f"It says {got}. From start to call, in ms: {rows}."


def _draw(case_result):
    tracks = []
    for own in case_result.before:
        first_s, track = own[0][0], []
        for start_s, call_s, end_s in own:
            times_ms = [1e3 * (moment_s - first_s) for moment_s in (start_s, call_s, end_s)]
            track.append(("compute", *times_ms[:2]))
            track.append(("communication", *times_ms[1:]))
        tracks.append(track)
    return timeline_plot(tracks, "time in ms, each rank by its own clock, from its first step on")


find_straggler = Task(
    number="11.2",
    name="find_straggler",
    twice=True,
    cases=_cases,
    act=_act,
    ok="the rank that is late, or none, for 1 collective",
    draw=_draw,
    must_return=False,  # None is an answer
    hints=(
        "All steps are as long as the latest rank's, and who is in the all-reduce for long has "
        "waited for it. So look at what each rank does before it calls.",
        "Clocks differ, so moments of two ranks cannot be compared. Differences of one clock can.",
        "A first step, or a single pause, moves a mean. Of the rest of the steps take the one in "
        "the middle.",
        "own = statistics.median(call - start for start, call, _ in steps[1:]); gather it, and "
        "compare the largest with the next one.",
    ),
    mistakes=(
        Mistake(
            "no-rank",
            "Return the rank, a whole number, or None.",
            shows=_is_no_rank,
        ),
        Mistake(
            "alone",
            "Each rank knows its own steps only. Tell the others one number.",
            "No rank has told another how long it computes.",
            shows=_asks_nobody,
        ),
        Mistake(
            "not-agreed",
            "Every rank must come to the same answer, from the same numbers.",
            shows=_disagrees,
        ),
        Mistake(
            "at-limit",
            "Exactly 1.25 times as long is not more than 1.25 times: compare by >.",
            shows=_if_wrong(lambda wrong: wrong.kind == _AT_LIMIT and wrong.got is not None),
        ),
        Mistake(
            "middle",
            "Of an even number of steps, the median is the mean of the two in the middle. "
            "statistics.median takes it, torch.median the lower one.",
            shows=_if_wrong(_takes_one_of_two),
        ),
        Mistake(
            "none-found",
            "Name the rank whose time is more than 1.25 times that of every other: compare the "
            "longest time with the second longest, and round neither. Rank 0 is a rank, and not "
            "None.",
            shows=_if_wrong(lambda wrong: wrong.got is None),
        ),
        Mistake(
            "nobody",
            "Name a rank only if its time is more than 1.25 times that of every other one: compare "
            "the longest time with the second longest, and not with a median or mean of all. "
            "Otherwise, and for one rank alone, return None.",
            shows=_if_wrong(_is_nobody),
        ),
        Mistake(
            "outlier",
            "A first step or a single pause must not decide: take the median of all steps but the "
            "first.",
            shows=_is_largest_of(_of_own(mean), _of_own(mean, 1), _of_own(median), _of_own(max, 1)),
        ),
        Mistake(
            "clock",
            "Each rank has a clock of its own: who calls last by its clock need not be last. "
            "Compare durations.",
            shows=_is_largest_of(lambda wrong: [own[-1][1] for own in wrong.steps]),
        ),
        Mistake(
            "victim",
            "That rank waits, or only its step is long. The straggler is the one that computes "
            "longest before it calls.",
            shows=_if_wrong(lambda wrong: True),
        ),
        Mistake(
            "cost",
            "One call is enough: one number from each rank, its median.",
            shows=_calls_too_much,
        ),
        Mistake(
            "raised",
            "The line that is named is yours. One rank alone has nobody to compare with.",
        ),
        Mistake(
            "input-changed",
            "Leave the list of steps as it is: steps[1:] makes a new one.",
        ),
        Mistake(
            "store",
            "Let the number travel in the collective.",
        ),
    ),
)
