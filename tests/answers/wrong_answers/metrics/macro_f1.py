"""
Answers to task 12.1.
"""

from bank import Answer

from wrong_answers.metrics.sources import IMPORTS, OWN_F1, altered

REDUCE = "    total = counts.clone()\n    dist.all_reduce(total)\n"


def of_own(what, mistake, lines):
    """
    Return an answer that begins with `own`, the F1 of a rank's local counts in float64.
    """
    source = IMPORTS + OWN_F1 + "def macro_f1(counts):\n    own = f1_of(counts).double()\n" + lines
    return Answer("12.1", what, mistake, source)


ANSWERS = [
    altered(
        "12.1", "leaves out what was never right", "lost-class", ("f1[named > 0]", "f1[right > 0]")
    ),
    of_own("looks at its own samples", "alone", "    return own.item()\n"),
    of_own(
        "takes the mean of means",
        "mean-of-means",
        "    dist.all_reduce(own)\n    return own.item() / dist.get_world_size()\n",
    ),
    of_own("adds up ranks' own", "summed", "    dist.all_reduce(own)\n    return own.item()\n"),
    altered(
        "12.1",
        "returns the share of right ones",
        "micro",
        (
            "    return f1[named > 0].mean().item()",
            "    return (right.sum() / total.sum().double()).item()",
        ),
    ),
    altered(
        "12.1",
        "weighs classes by their samples",
        "by-class-size",
        (
            "f1[named > 0].mean().item()",
            "(f1.nan_to_num() * total.sum(1)).sum().item() / total.sum().item()",
        ),
    ),
    altered(
        "12.1",
        "returns the recall",
        "one-side",
        ("2 * right.double() / named", "right.double() / total.sum(1)"),
        ("f1[named > 0]", "f1.nan_to_num()[named > 0]"),
    ),
    altered(
        "12.1",
        "makes an F1 of two means",
        "mean-first",
        (
            "    f1 = 2 * right.double() / named\n    return f1[named > 0].mean().item()",
            "    p = (right.double() / total.sum(0)).nan_to_num()[named > 0].mean()\n"
            "    r = (right.double() / total.sum(1)).nan_to_num()[named > 0].mean()\n"
            "    return (2 * p * r / (p + r)).item()",
        ),
    ),
    altered("12.1", "forgets the 2 above", "half", ("2 * right.double()", "right.double()")),
    altered(
        "12.1",
        "gives absent classes a 0",
        "absent-class",
        ("f1[named > 0].mean()", "f1.nan_to_num().mean()"),
    ),
    altered("12.1", "divides 0 by 0", "nan", ("f1[named > 0].mean()", "f1.mean()")),
    altered(
        "12.1",
        "leaves out what it has not seen itself",
        "own-classes",
        ("f1[named > 0]", "f1[counts.sum(0) + counts.sum(1) > 0]"),
    ),
    altered("12.1", "counts in int32", "digits", ("counts.clone()", "counts.int()")),
    altered(
        "12.1", "returns one for each class", "no-number", ("f1[named > 0].mean().item()", "f1")
    ),
    altered("12.1", "returns nothing", "nothing", ("    return f1[", "    f1[")),
    altered(
        "12.1",
        "adds into its argument",
        "input-changed",
        ("counts.clone()", "counts"),
    ),
    altered(
        "12.1",
        "reduces to rank 0",
        "not-everywhere",
        ("dist.all_reduce(total)", "dist.reduce(total, 0)\n    if dist.get_rank(): total += 1"),
    ),
    altered(
        "12.1",
        "makes three collectives",
        "cost",
        (
            REDUCE + "    right = total.diagonal()\n    named = total.sum(0) + total.sum(1)\n",
            "    right, rows, columns = counts.diagonal().clone(), counts.sum(1), counts.sum(0)\n"
            "    for one in (right, rows, columns): dist.all_reduce(one)\n"
            "    named = rows + columns\n",
        ),
    ),
    altered(
        "12.1",
        "has a place for each rank",
        "bytes",
        (
            REDUCE,
            "    shape = dist.get_world_size() + 1, *counts.shape\n"
            "    table = torch.zeros(shape, dtype=counts.dtype)\n"
            "    table[dist.get_rank()] = counts\n    dist.all_reduce(table)\n"
            "    total = table.sum(0)\n",
        ),
    ),
    altered(
        "12.1",
        "divides by its own samples first",
        "raised",
        (REDUCE, "    1 / counts.sum().item()\n" + REDUCE),
    ),
    altered(
        "12.1",
        "leaves without samples",
        "deadlock",
        (REDUCE, "    if counts.sum() == 0: return 0.0\n" + REDUCE),
    ),
    altered(
        "12.1",
        "leaves out wrong ones of other classes",
        "values",
        ("total.sum(0) + total.sum(1)", "total.sum(0) + 2 * total.sum(1)"),
    ),
    altered(
        "12.1",
        "gathers the tables",
        None,
        (
            REDUCE,
            "    everyone = [torch.empty_like(counts) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(everyone, counts.contiguous())\n    total = sum(everyone)\n",
        ),
    ),
    altered(
        "12.1",
        "sends three sums in one float64 tensor",
        None,
        (
            REDUCE + "    right = total.diagonal()\n    named = total.sum(0) + total.sum(1)\n",
            "    three = torch.stack([counts.diagonal(), counts.sum(0), counts.sum(1)]).double()\n"
            "    dist.all_reduce(three)\n    right, named = three[0], three[1] + three[2]\n",
        ),
    ),
    Answer(
        "12.1",
        "loops over classes with whole numbers of Python",
        None,
        IMPORTS
        + """\
from fractions import Fraction

def macro_f1(counts):
    total = counts.flatten().clone()
    dist.all_reduce(total)
    table = total.view_as(counts).tolist()
    size, found = len(table), []
    for c in range(size):
        tp = table[c][c]
        fp = sum(table[i][c] for i in range(size) if i != c)
        fn = sum(table[c][j] for j in range(size) if j != c)
        if tp + fp + fn:
            found.append(Fraction(2 * tp, 2 * tp + fp + fn))
    return float(sum(found) / len(found))
""",
    ),
]
