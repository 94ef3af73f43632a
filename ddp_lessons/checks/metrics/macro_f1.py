"""
Task 12.1: a macro F1 that is the same for any split of the samples.

On each rank: `_act`; in both: `_counts`. In the kernel: the rest.
"""

import math
from fractions import Fraction

import torch

from ddp_lessons.checks.kit import Case, Task, generator
from ddp_lessons.checks.metrics.op_costs import judge_price, number_of
from ddp_lessons.pictures import holdings_picture

REL_OFF = 1e-12  # the task asks for 12 digits


_ODD_PAIRS = ((0, 2), (2, 1), (3, 3), (4, 4), (3, 4))
"""
The (label, prediction) pairs of the case "never right": class 0 is only a label, class 1 only a
prediction, and class 2 is both, but never right.
"""


def _cases(draw):
    yield Case(4, {"classes": 3, "samples": [40, 8, 3, 15]}, seed=12)
    classes = draw.randint(4, 6)
    yield Case(1, {"classes": classes, "samples": [draw.randint(40, 90)]})
    yield Case(2, {"classes": classes, "samples": [draw.randint(5, 9), draw.randint(60, 90)]})
    samples = [draw.randint(40, 60), 0, draw.randint(5, 12)]
    yield Case(3, {"classes": classes, "samples": samples, "absent class": 1})
    samples = [draw.randint(40, 60), draw.randint(5, 12)]
    yield Case(2, {"classes": classes, "samples": samples, "counts": "beyond 2**32"})
    samples = [draw.randint(40, 60), draw.randint(40, 60)]
    yield Case(2, {"classes": 5, "samples": samples, "never right": 3})


def _counts(case, rank):
    # Return a rank's table of counts, labels by predictions. About half of its samples are right.
    classes, num_samples = case["classes"], case["samples"][rank]
    rng = generator(case, rank)
    named = [one for one in range(classes) if one != case.data.get("absent class")]
    if case.world_size > 1 and rank == case.world_size - 1:
        named = named[1:]  # the last rank has no sample of the first class
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    if "never right" in case.data:
        for place in torch.randint(len(_ODD_PAIRS), (num_samples,), generator=rng).tolist():
            counts[_ODD_PAIRS[place]] += 1
        return counts
    for number in range(num_samples):
        one, other = (named[place] for place in torch.randint(len(named), (2,), generator=rng))
        counts[one, other if number % 2 else one] += 1
    if "counts" in case.data:
        counts = counts * 2 ** (33 - rank) + 2 * (counts > 0) + 1
    return counts


def _act(context, macro_f1):
    context.call(macro_f1, _counts(context.case, context.rank).to(context.device))


def _f1_of(table):
    # Return the F1 of each class as a Fraction; None if no label and no prediction names the class.
    table = table.tolist()
    found = []
    for one in range(len(table)):
        named = sum(table[one]) + sum(row[one] for row in table)
        found.append(Fraction(2 * table[one][one], named) if named else None)
    return found


def _mean(numbers):
    kept = [number for number in numbers if number is not None]
    return float(sum(kept) / len(kept)) if kept else 0.0


def _judge(case_result):
    case = case_result.case
    tables = [_counts(case, rank) for rank in range(case.world_size)]
    expected = _mean(_f1_of(sum(tables)))
    numbers = [number_of(result) for result in case_result.results]
    for rank, (number, result) in enumerate(zip(numbers, case_result.results, strict=True)):
        if number is None:
            fact = "It must return one number."
            raise case_result.wrong("no-number", rank, got=result, fact=fact)
    are_right = [math.isclose(number, expected, rel_tol=REL_OFF) for number in numbers]
    for rank, number in enumerate(numbers):
        if not are_right[rank]:
            mistake = _mistake(tables, rank, number, expected, "counts" in case.data)
            if any(are_right) and mistake == "values":
                mistake = "not-everywhere"
            fact = "It is not the F1 of all samples."
            raise case_result.wrong(mistake, rank, got=number, expected=expected, fact=fact)
    most_bytes = 8 * case["classes"] ** 2
    for seen in case_result.seen:
        judge_price(case_result, seen.rank, seen.calls[-1], most_bytes)


def _mistake(tables, rank, got, expected, is_large):
    if math.isnan(got):
        return "nan"
    if math.isclose(got, expected, rel_tol=1e-5):
        return "digits"
    found = [
        name for name, number in _mistakes(tables, rank) if math.isclose(got, number, rel_tol=1e-5)
    ]
    # The cases with small counts came before and were right, so digits of large counts are lost.
    return found[0] if found else "digits" if is_large else "values"


def _mistakes(tables, rank):
    total = sum(tables)
    own = [_mean(_f1_of(table)) for table in tables]
    sizes = [table.sum().item() for table in tables]
    filled = [one for one, size in zip(own, sizes, strict=True) if size]
    named = [one is not None for one in _f1_of(tables[rank])]
    f1 = _f1_of(total)
    right, labels, predicted = (
        one.double() for one in (total.diagonal(), total.sum(1), total.sum(0))
    )
    both = labels + predicted
    sides = [(right / side).nan_to_num(0.0) for side in (labels, predicted)]
    occurs = both > 0
    means = [side[occurs].mean().item() for side in sides]
    yield "micro", right.sum().item() / labels.sum().item()
    yield "absent-class", float(sum(one or 0 for one in f1)) / len(f1)
    yield "absent-class", float(sum(1 if one is None else one for one in f1)) / len(f1)
    whole = (2 * right / both).nan_to_num(0.0)
    for some in (right, labels, predicted):
        yield "lost-class", whole[some > 0].mean().item()
    for side in means:
        yield "one-side", side
    for side, of in zip(sides, (labels, predicted), strict=True):
        yield "one-side", side[of > 0].mean().item()
    yield "mean-first", 2 * means[0] * means[1] / (means[0] + means[1])
    yield (
        "by-class-size",
        (whole * labels).sum().item() / labels.sum().item(),
    )
    yield "half", _mean(f1) / 2  # TP in place of 2 TP
    yield "half", (right / (both - right))[occurs].mean().item()
    if len(tables) == 1:
        return
    for mean in (sum(own) / len(own), sum(filled) / len(filled)):
        yield "mean-of-means", mean
    yield (
        "mean-of-means",
        sum(one * size for one, size in zip(own, sizes, strict=True)) / sum(sizes),
    )
    by_class = list(zip(*map(_f1_of, tables), strict=True))
    yield (
        "mean-of-means",
        _mean([Fraction(_mean(one)) for one in by_class if any(x is not None for x in one)]),
    )
    yield (
        "mean-of-means",
        float(sum(sum(x or 0 for x in one) for one in by_class)) / len(tables) / len(f1),
    )
    rows = [table.sum(1).tolist() for table in tables]
    by_row = [
        sum((one or 0) * row[place] for one, row in zip(ranks, rows, strict=True))
        / max(sum(row[place] for row in rows), 1)
        for place, ranks in enumerate(by_class)
    ]
    yield "mean-of-means", float(sum(by_row)) / len(f1)
    yield "summed", sum(own)
    yield "alone", own[rank]
    if any(named):
        yield (
            "own-classes",
            _mean([one for one, is_named in zip(f1, named, strict=True) if is_named]),
        )


def _draw(case_result):
    names = [f"class {one}" for one in range(case_result.case["classes"])] + ["macro F1"]
    rows = []
    for rank, result in enumerate(case_result.results):
        own = _f1_of(_counts(case_result.case, rank))
        told = ["none" if one is None else f"{float(one):.3f}" for one in own]
        number = number_of(result)
        told.append("no number" if number is None else f"{number:.3f}")
        rows.append(dict(zip(names, told, strict=True)))
    return holdings_picture(names, rows)


macro_f1 = Task(
    number="12.1",
    name="macro_f1",
    cases=_cases,
    act=_act,
    judge=_judge,
    ok="one collective, and the F1 of one process, to 12 digits",
    draw=_draw,
    hints=(
        "Which numbers of a rank can be added up over ranks so that nothing is lost? An F1 cannot.",
        "The tables add up: entry by entry, in int64. Add them up before you divide anything.",
        "In the table of all ranks, TP + FN is the sum of a class's row, TP + FP that of its "
        "column. So the lower part of the fraction is row plus column.",
        "total = counts.clone(); dist.all_reduce(total); right, named = total.diagonal(), "
        "total.sum(0) + total.sum(1); then the float64 mean of 2 * right / named, where named > 0.",
    ),
    mistakes={
        "alone": "This is the F1 of a rank's own samples. Let ranks talk first.",
        "mean-of-means": "A mean of ranks' own F1 depends on the split, whatever the weights. Add "
        "up what an F1 is made of.",
        "summed": "Ranks' own F1 do not add up to the F1 of all.",
        "micro": "This is the share of right answers. Macro F1 is a mean over classes, each "
        "weighing alike.",
        "by-class-size": "Each class weighs alike, however many samples it has.",
        "one-side": "This is precision or recall. F1 has both FP and FN below the line.",
        "mean-first": "First an F1 for each class, then their mean; not an F1 of two means.",
        "half": "The right ones count twice, above the line and below it.",
        "absent-class": "A class that no label and no prediction of any rank names has no F1: "
        "leave it out of the mean.",
        "lost-class": "A class that a label or a prediction names has an F1, also if only one of "
        "them does, or nobody was right: it is 0 then, and it counts.",
        "own-classes": "Which classes occur is for all ranks together to say, not for one rank.",
        "digits": "Digits are lost on the way. Add up in int64 or float64, and divide in float64: "
        "float32 cannot count beyond 2**24, and int32 not beyond 2**31.",
        "nan": "0 divided by 0 is nan. It comes from a class that nobody names, or from a rank "
        "without samples.",
        "no-number": "Return one number: a float, or a tensor of one.",
        "not-everywhere": "Some ranks have the right number, others do not. Every rank must have "
        "it: which collective gives its result to all?",
        "nothing": "Return the F1.",
        "input-changed": "A collective writes into the tensor that it gets. Hand it a copy of the "
        "table.",
        "raised": "The line that is named is yours. A rank may have no samples: then its own sums "
        "are 0, and it cannot divide by them.",
        "deadlock": "Every rank makes the same call, one without samples too: its table is all 0.",
        "cost": "The table of counts is one tensor, so one collective will do.",
        "bytes": "As many numbers of 8 bytes as the table has are enough.",
        "values": "Take two ranks and two classes, write down their tables, and go through your "
        "lines.",
    },
    twice=True,
)
