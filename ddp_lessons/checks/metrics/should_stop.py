"""
Task 12.4: stop early, together.

On each rank: `_act`; in both: `_means`, `_totals`, `_flags`. In the kernel: the rest.
"""

import math
from dataclasses import replace

import torch

from ddp_lessons.checks.kit import VALUES, Case, Expected, Mistake, Task, equal, generator, words
from ddp_lessons.checks.metrics.op_costs import fact_of_price, number_of
from ddp_lessons.checks.metrics.stopping_rules import MIN_DELTA, PATIENCE, RULES, decisions
from ddp_lessons.pictures import holdings_picture

MEANS = (4.0, 3.5, 3.0, math.nan, 2.5, 2.25, 2.0, 1.0, 0.75, 0.5, 2.0, 2.0)
"""
The mean loss of all samples in each call. With a min_delta of 0.5, 3.5 and 2.5 are not
better, and 3.0 is.
"""
_SIGNS = {2: (1, -1), 3: (1, 1, -2), 4: (1, 2, -1, -2)}  # how far ranks' losses are off the mean
_FALLING = tuple(10.07 - 0.77 * call for call in range(len(MEANS)))  # means of rounded sums
MESSAGE_BYTES = 24  # three numbers of float64


def _cases(draw):
    yield Case(4, {"samples": [4, 1, 8, 3]}, seed=4)
    yield Case(1, {"samples": [draw.choice([2, 4, 8])]})
    first = draw.randint(1, 7)
    yield Case(2, {"samples": [first, 8 - first]})
    first = draw.randint(2, 7)
    yield Case(3, {"samples": [first, 0, 16 - first]})
    yield Case(2, {"samples": [0, 0]})
    yield Case(4, {"samples": [draw.randint(3, 9) for _ in range(4)], "rounded": True})
    data = {"samples": [3, 1], "time is up on rank": draw.randint(0, 1), "in call": [3, 5]}
    yield Case(2, data)


def _means(case):
    if "rounded" in case.data:
        return _FALLING
    return MEANS if any(case["samples"]) else (math.nan,) * len(MEANS)


def _totals(case, rank):
    # Return the sum of a rank's losses in each call. The means of ranks differ; that of all samples
    # is the one in `_means`. The number of all samples is a power of 2, so each mean is exact, even
    # in float32. In a case with "rounded", ranks that add in different orders get different bits.
    num_samples, num_all = case["samples"][rank], sum(case["samples"])
    filled = [one for one, count in enumerate(case["samples"]) if count]
    rng = generator(case, 99)
    totals = []
    for mean in _means(case):
        moved = (torch.randint(1, 9, (), generator=rng).item() - 4.5) * num_all / 4
        moved *= 0.07 if "rounded" in case.data else 1
        place = filled.index(rank) if rank in filled else None
        if place is None:
            totals.append(0.0)
        elif len(filled) == 1:
            totals.append(mean * num_samples)
        else:
            sign = _SIGNS[len(filled)][place]
            finite = 3.0 if math.isnan(mean) else mean
            total = finite * num_samples + sign * moved
            totals.append(math.nan if math.isnan(mean) and place == 0 else total)
    return totals


def _flags(case, rank):
    is_named = rank == case.data.get("time is up on rank")
    return [is_named and call + 1 in case["in call"] for call in range(len(MEANS))]


def _act(context, should_stop):
    notes = {"best": math.inf, "bad_epochs": 0, "patience": PATIENCE, "min_delta": MIN_DELTA}
    noted = []
    num_samples = context["samples"][context.rank]
    for total, flag in zip(
        _totals(context.case, context.rank), _flags(context.case, context.rank), strict=True
    ):
        context.call(should_stop, notes, total, num_samples, flag)
        noted.append({name: number_of(notes.get(name)) for name in ("best", "bad_epochs")})
    return noted


def _rows(decided):
    """
    Return decisions as {call: {name: value}}. The best loss is a text of 6 digits, because float32
    may have rounded it.
    """
    return {
        f"call {number}": {
            "result": stop,
            'notes["best"]': f"{best:.6g}",
            'notes["bad_epochs"]': bad,
        }
        for number, (stop, best, bad) in enumerate(decided, start=1)
    }


def _word(best):
    return "no number" if best is None else f"{best:.6g}"


def _gave(view):
    calls = zip(view.seen.calls, view.output, strict=True)
    return _rows((call.result, noted["best"], noted["bad_epochs"]) for call, noted in calls)


def _flags_of(case):
    return [_flags(case, rank) for rank in range(case.world_size)]


def _any_flag(case):
    return [any(flags) for flags in zip(*_flags_of(case), strict=True)]


def _right(case, _):
    return _rows(decisions(_means(case), _any_flag(case)))


def _by_rules(name):
    def gives(case, rank):
        flags = (_any_flag(case), _flags_of(case)[rank], [False] * len(MEANS))
        found = [decisions(_means(case), flag, **rule) for rule in RULES[name] for flag in flags]
        if name == "nan" and not any(case["samples"]):
            found.append(decisions([0.0] * len(MEANS), _any_flag(case)))
        return [_rows(one) for one in found]

    return gives


def _by_losses(losses_of):
    # Return a `gives` with the decisions by each list of losses that `losses_of` returns, each with
    # the flags of all ranks, with this rank's flags, and without flags.
    def gives(case, rank):
        flags = (_any_flag(case), _flags_of(case)[rank], [False] * len(MEANS))
        return [_rows(decisions(means, flag)) for means in losses_of(case, rank) for flag in flags]

    return gives


def _own_losses(case):
    sizes = case["samples"]
    totals = [_totals(case, rank) for rank in range(case.world_size)]
    return [
        [total / max(size, 1) for total in row] for row, size in zip(totals, sizes, strict=True)
    ]


def _alone(case, rank):
    own, flags = _own_losses(case), _flags_of(case)
    alone = [list(decisions(*pair)) for pair in zip(own, flags, strict=True)]
    stops = [any(stop for stop, *_ in call) for call in zip(*alone, strict=True)]
    shared = [(stop, *one[1:]) for stop, one in zip(stops, alone[rank], strict=True)]
    return [_rows(shared), *_by_losses(lambda *_: [own[rank]])(case, rank)]


def _mean_of_means(case, _):
    own = _own_losses(case)
    filled = [one for one, size in zip(own, case["samples"], strict=True) if size] or own
    return [[sum(one) / len(one) for one in zip(*some, strict=True)] for some in (own, filled)]


def _sums(case, _):
    totals = [_totals(case, rank) for rank in range(case.world_size)]
    sums = [sum(one) for one in zip(*totals, strict=True)]
    return [sums, [one / len(totals) for one in sums]]


def _not_bool(view):
    odd = [call.result for call in view.seen.calls if not isinstance(call.result, bool)]
    return odd and f"It must return True or False, and returns {words(odd[0])}."


def _is_unlike(view):
    own, first = view.output, view.case_result.seen[0].output
    at = next((number for number, pair in enumerate(zip(own, first, strict=True), start=1)
               if not equal(*pair)), None)  # fmt: skip
    return at and f'After call {at}, notes["best"] has other last digits than on rank 0.'


def _costs(view):
    return next(filter(None, (fact_of_price(call, MESSAGE_BYTES) for call in view.seen.calls)), "")


def _draw(case_result):
    names = ["says stop in call", "best in the end", "bad epochs"]
    rows = []
    for seen in case_result.seen:
        stops = [str(number + 1) for number, call in enumerate(seen.calls) if call.result]
        last = seen.output[-1]
        told = [", ".join(stops) or "none", f"{last['best']:g}", f"{last['bad_epochs']:g}"]
        rows.append(dict(zip(names, told, strict=True)))
    return holdings_picture(names, rows)


should_stop = Task(
    number="12.4",
    name="should_stop",
    cases=_cases,
    act=_act,
    ok="one collective of at most 24 bytes a call, the same decision on all ranks",
    draw=_draw,
    hints=(
        "Ranks that know the same numbers, and follow the same rule, decide alike. Which numbers "
        "must all of them know?",
        "The sum of all losses, the number of all samples, and whether anybody's time is up. A "
        "wish can be sent as 0 or 1.",
        "Three sums over ranks are one message. Then compare: a loss is better if it is below "
        "best - min_delta. A comparison with nan is False.",
        "own = torch.tensor([total, num_samples, time_is_up], dtype=torch.float64, "
        "device=rank_device()); dist.all_reduce(own); then the rule, from these three.",
    ),
    expected=Expected(_right, gave=_gave),
    mistakes=(
        Mistake(
            "not-bool",
            "Return True or False. A tensor of one number becomes one by bool().",
            shows=_not_bool,
        ),
        Mistake(
            "nan",
            "A loss that is not a number is not better, and so it is a bad epoch. It must not "
            "become the best. Where nobody has samples the loss is none, and not 0.",
            gives=_by_rules("nan"),
        ),
        Mistake(
            "min-delta",
            "A loss is better only if it is below the best by more than min_delta.",
            gives=_by_rules("min-delta"),
        ),
        Mistake(
            "patience",
            "Stop as soon as as many epochs in a row as patience says were not better, and in "
            "each call after that in which there are more.",
            gives=_by_rules("patience"),
        ),
        Mistake(
            "best",
            "The best is the lowest loss that counted as better. Others leave it as it is.",
            gives=_by_rules("best"),
        ),
        Mistake(
            "time",
            "If time is up on any rank, all must stop, and the others do not know of it: send it "
            "along.",
            gives=_by_losses(lambda case, _: [_means(case)]),
        ),
        Mistake(
            "mean-of-means",
            "Ranks have unequally many samples: add up sums and numbers, and divide once.",
            gives=_by_losses(_mean_of_means),
        ),
        Mistake(
            "not-a-mean",
            "Divide the sum of all losses by the number of all samples.",
            gives=_by_losses(_sums),
        ),
        Mistake(
            "one-rank",
            "One rank's loss decides. The samples of the others must count too.",
            gives=_by_losses(
                lambda case, rank: [
                    own for other, own in enumerate(_own_losses(case)) if other != rank
                ]
            ),
        ),
        Mistake(
            "alone",
            "Each rank goes by its own loss. A decision that is shared afterwards leaves their "
            "notes apart: share losses, then decide.",
            gives=_alone,
        ),
        replace(
            VALUES,
            hint="Go through the calls with a pencil: the mean of all, the best so far, and the "
            "bad epochs, which are noted in each call, also in one in which time is up.",
            symptom="Its decisions or its notes are not those of one process with all losses.",
        ),
        Mistake(
            "not-alike",
            "Sums that are added in different orders differ in their last digit, and then one "
            "rank finds a loss better and another does not. All ranks must add in the same order: "
            "rank 0's part first, not their own.",
            shows=_is_unlike,
        ),
        Mistake(
            "cost",
            "Three numbers of float64 fit into one tensor, and so into one collective of 24 bytes.",
            shows=_costs,
        ),
        Mistake("nothing", "Return True or False."),
        Mistake(
            "raised",
            "The line that is named is yours. A rank may have no samples, and so may all: Python "
            "cannot divide by 0, a tensor can.",
        ),
        Mistake(
            "deadlock",
            "Every rank makes the same call each time: one without samples, and one whose time is "
            "up.",
        ),
    ),
    in_place=True,
)
