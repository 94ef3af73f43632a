"""
Task 12.4: stop early, together.
"""

import math

import torch

from ddp_lessons.checks.kit import Case, Task, equal, generator
from ddp_lessons.checks.metrics.prices import judge_price, number_of
from ddp_lessons.checks.metrics.stopping_rules import MIN_DELTA, PATIENCE, RULES, decisions
from ddp_lessons.pictures import holdings_picture

MEANS = (4.0, 3.5, 3.0, math.nan, 2.5, 2.25, 2.0, 1.0, 0.75, 0.5, 2.0, 2.0)
"""
Of all samples, call by call. With a min_delta of 0.5, 3.5 and 2.5 are not better, 3.0 is.
"""
_SIGNS = {2: (1, -1), 3: (1, 1, -2), 4: (1, 2, -1, -2)}  # where ranks' own losses are, off the mean
_SHORTER = 0.77  # of MEANS: sums over ranks are rounded, and the same losses count as better
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
        return tuple(_SHORTER * mean for mean in MEANS)
    return MEANS if any(case["samples"]) else (math.nan,) * len(MEANS)


def _totals(case, rank):
    # The sum of a rank's losses in each call: the means of ranks differ, that of all is MEANS.
    # The number of all samples is a power of 2, so that each mean is exact, also in float32.
    # Where sums are rounded, ranks that add in different orders get different bits.
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


def _act(here, should_stop):
    notes = {"best": math.inf, "bad_epochs": 0, "patience": PATIENCE, "min_delta": MIN_DELTA}
    noted = []
    num_samples = here["samples"][here.rank]
    for total, flag in zip(
        _totals(here.case, here.rank), _flags(here.case, here.rank), strict=True
    ):
        here.call(should_stop, notes, total, num_samples, flag)
        noted.append({name: number_of(notes.get(name)) for name in ("best", "bad_epochs")})
    return noted


class _Mistakes:
    """
    Play the task by other losses, flags and rules, to tell which of them an answer goes by.
    """

    def __init__(self, case):
        ranks = range(case.world_size)
        self.sizes, self.means = case["samples"], _means(case)
        self.totals = [_totals(case, rank) for rank in ranks]
        self.flags = [_flags(case, rank) for rank in ranks]
        self.any_flag = [any(one) for one in zip(*self.flags, strict=True)]

    def own(self, rank):
        """
        Yield the decisions of a rank by its own loss, if that is another one than that of all.
        """
        size, totals = max(self.sizes[rank], 1), self.totals[rank]
        means = [total / size for total in totals]
        if means[0] != self.means[0]:
            yield decisions(means, self.flags[rank])

    def right(self):
        """
        Return what is right in each call.
        """
        return list(decisions(self.means, self.any_flag))

    def of(self, rank, are_alike):
        """
        Yield (name, the decisions of a rank that makes this mistake), if all ranks decide alike.
        """
        for name, rules in RULES.items():
            for rule in rules:
                yield name, decisions(self.means, self.any_flag, **rule)
        never = [False] * len(MEANS)
        if not any(self.sizes):
            yield "nobody", decisions([0.0] * len(MEANS), never)
            return
        yield "time-ignored", decisions(self.means, never)
        own = [
            [total / max(size, 1) for total in totals]
            for totals, size in zip(self.totals, self.sizes, strict=True)
        ]
        filled = [one for one, size in zip(own, self.sizes, strict=True) if size]
        for flags in (self.any_flag, self.flags[rank], never):
            if not are_alike:
                yield "alone", decisions(own[rank], flags)
            for some in (own, filled):
                means = [sum(one) / len(one) for one in zip(*some, strict=True)]
                yield "mean-of-means", decisions(means, flags)
            sums = [sum(one) for one in zip(*self.totals, strict=True)]
            yield "not-a-mean", decisions(sums, flags)
            yield "not-a-mean", decisions([one / len(own) for one in sums], flags)
            for one in own:
                yield "one-rank", decisions(one, flags)


def _judge(played):
    case = played.case
    mistakes = _Mistakes(case)
    right = mistakes.right()
    got = [_decided(played, seen) for seen in played.seen]
    for number in range(len(MEANS)):
        for seen in played.seen:
            rank, one = seen.rank, got[seen.rank][number]
            if not _same(one, right[number]):
                raise _refusal(played, rank, number, got, right, mistakes)
            if not equal(one, got[0][number]):
                both = {"got": one[1], "expected": got[0][number][1]}
                fact = f'After call {number + 1}, notes["best"] has other digits than on rank 0.'
                raise played.wrong("not-alike", rank, **both, fact=fact)
    for seen in played.seen:
        for call in seen.calls:
            judge_price(played, seen.rank, call, MESSAGE_BYTES)


def _decided(played, seen):
    found = []
    for call, noted in zip(seen.calls, seen.kept, strict=True):
        if not isinstance(call.result, bool):
            fact = "It must return True or False."
            raise played.wrong("not-bool", seen.rank, got=call.result, fact=fact)
        if None in noted.values():
            fact = 'notes["best"] and notes["bad_epochs"] must stay numbers.'
            raise played.wrong("notes", seen.rank, fact=fact)
        found.append((call.result, noted["best"], noted["bad_epochs"]))
    return found


def _same(one, other):
    # nan equals nan here; the best is a mean, which float32 may have rounded
    is_close = math.isclose(one[1], other[1], rel_tol=1e-6) or (
        math.isnan(one[1]) and math.isnan(other[1])
    )
    return one[0] == other[0] and is_close and one[2] == other[2]


def _refusal(played, rank, number, got, right, mistakes):
    names = ("its result", 'notes["best"]', 'notes["bad_epochs"]')
    place = next(at for at in (2, 1, 0) if not _same_at(got[rank][number], right[number], at))
    fact = f"In call {number + 1} the mean loss of all samples is {mistakes.means[number]:g}, and "
    fact += f"{names[place]} is not right."
    both = {"got": got[rank][number][place], "expected": right[number][place]}
    are_alike = all(all(map(_same, one, got[0])) for one in got)
    known = mistakes.of(rank, are_alike)
    found = [name for name, decided in known if all(map(_same, got[rank], decided))]
    if not found and any(_same_notes(got[rank], own) for own in mistakes.own(rank)):
        found = ["alone"]
    if found[:1] == ["time-ignored"] and not are_alike:
        found = ["time-alone"]
    if not found:
        others = [all(map(_same, one, right)) for one in got]
        stops = [one[0] for one in right]
        if all(one[0] == stop for one, stop in zip(got[rank], stops, strict=True)):
            found = ["notes"]
        elif any(others):
            found = ["not-everywhere"]
    return played.wrong(found[0] if found else "values", rank, **both, fact=fact)


def _same_notes(one, other):
    pairs = zip(one, other, strict=True)
    return all(_same((False, *noted[1:]), (False, *known[1:])) for noted, known in pairs)


def _same_at(one, other, place):
    pair = [(False, 0.0, 0), (False, 0.0, 0)]
    both = [
        tuple(row[at] if at == place else zero[at] for at in range(3))
        for row, zero in zip((one, other), pair, strict=True)
    ]
    return _same(*both)


def _draw(played):
    names = ["says stop in call", "best in the end", "bad epochs"]
    rows = []
    for seen in played.seen:
        stops = [str(number + 1) for number, call in enumerate(seen.calls) if call.result]
        last = seen.kept[-1]
        told = [", ".join(stops) or "none", f"{last['best']:g}", f"{last['bad_epochs']:g}"]
        rows.append(dict(zip(names, told, strict=True)))
    return holdings_picture(names, rows)


should_stop = Task(
    number="12.4",
    name="should_stop",
    cases=_cases,
    act=_act,
    judge=_judge,
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
    mistakes={
        "alone": "Each rank goes by its own loss. A decision that is shared afterwards leaves "
        "their notes apart: share losses, then decide.",
        "mean-of-means": "Ranks have unequally many samples: add up sums and numbers, and divide "
        "once.",
        "not-a-mean": "Divide the sum of all losses by the number of all samples.",
        "one-rank": "One rank's loss decides. The samples of the others must count too.",
        "min-delta": "A loss is better only if it is below the best by more than min_delta.",
        "patience": "Stop as soon as as many epochs in a row as patience says were not better.",
        "not-reset": "A better loss begins the count of bad epochs anew.",
        "nan": "A loss that is not a number is not better, and so it is a bad epoch. It must not "
        "become the best.",
        "best": "The best is the lowest loss that counted as better. Others leave it as it is.",
        "nobody": "Where nobody has samples there is no loss of 0, but none: it is not a number.",
        "time-ignored": "If time is up on any rank, all must stop.",
        "time-alone": "One rank's time is enough, and the others do not know of it: send it along.",
        "not-bool": "Return True or False. A tensor of one number becomes one by bool().",
        "notes": 'Keep notes["best"] and notes["bad_epochs"] as the task says, after each call, '
        "also in a call in which time is up.",
        "not-alike": "Sums that are added in different orders differ in their last digit, and then "
        "one rank finds a loss better and another does not. All ranks must add in the same order: "
        "rank 0's part first, not their own.",
        "not-everywhere": "Some ranks decide rightly, others do not. Every rank must get the sums: "
        "which collective gives its result to all?",
        "nothing": "Return True or False.",
        "raised": "The line that is named is yours. A rank may have no samples, and so may all: "
        "Python cannot divide by 0, a tensor can.",
        "deadlock": "Every rank makes the same call each time: one without samples, and one whose "
        "time is up.",
        "cost": "Three numbers fit into one tensor, and so into one collective.",
        "bytes": "Three numbers of float64 are enough.",
        "once": "Bad epochs may be more than patience when it is called again: it has to stop "
        "then, too.",
        "time-as-loss": "That somebody's time is up says nothing of the loss: count it and note it "
        "as always, and stop all the same.",
        "values": "Go through the calls with a pencil: the mean of all, the best so far, the bad "
        "epochs.",
    },
    in_place=True,
)
