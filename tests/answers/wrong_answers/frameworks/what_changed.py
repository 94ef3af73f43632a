"""
Answers to task 16.2.
"""

from bank import Answer

from wrong_answers.frameworks.sources import altered

ANSWERS = [
    altered(
        "16.2",
        "finds what is divided by 3",
        "divided",
        (
            'if other[0]["gradients"] != plain[0]["gradients"]:',
            'if other[0]["gradients"][0] < 0.4 * plain[0]["gradients"][0]:',
        ),
    ),
    altered(
        "16.2",
        "does not count samples",
        "twice",
        ('return "sharded twice"', "pass"),
    ),
    altered(
        "16.2",
        "takes every order for a shuffled one",
        "dealt",
        ('"dealt in batches" if follow else ', ""),
    ),
    altered(
        "16.2",
        "takes every order for a dealt one",
        "shuffled",
        ('if follow else "shuffled"', ""),
    ),
    altered(
        "16.2",
        "looks at the first epoch alone",
        "epoch",
        ("before[0] == after[0] and before[1] != after[1]", "False"),
        ("if before != after:", "if before[0] != after[0]:"),
    ),
    altered(
        "16.2",
        "looks at rank 0 alone",
        "averaged",
        ('any(rank["gradients"] != other[0]["gradients"] for rank in other)', "False"),
    ),
    altered(
        "16.2",
        "counts no steps",
        "accumulated",
        ('len(other[0]["rates"]) != len(plain[0]["rates"])', "False"),
    ),
    altered(
        "16.2",
        "looks at no rates",
        "schedule",
        ('other[0]["rates"] != plain[0]["rates"]', "False"),
    ),
    altered(
        "16.2",
        "allows losses to be a little off",
        "precision",
        ('old["losses"][0] != new["losses"][0]', 'abs(old["losses"][0] - new["losses"][0]) > 0.5'),
    ),
    altered(
        "16.2",
        "finds something everywhere",
        "false-alarm",
        ('return "nothing"', 'return "schedule too fast"'),
    ),
    altered("16.2", "shortens the name", "no-cause", ('"sharded twice"', '"twice"')),
    altered(
        "16.2",
        "reckons that lists are of one length",
        "raised",
        (
            "    if any(rank",
            "    list(zip(plain[0]['rates'], other[0]['rates'], strict=True))\n    if any(rank",
        ),
        ('        return "accumulated"', "        pass"),
    ),
    altered(
        "16.2",
        "asks the others",
        "forbidden",
        (
            "    for old",
            "    import torch\n    torch.distributed.all_reduce(torch.ones(1))\n    for old",
        ),
    ),
    altered(
        "16.2",
        "takes batches away as it looks",
        "input-changed",
        (
            'before, after = old["samples"], new["samples"]',
            'before, after = old["samples"], new["samples"]\n        new.pop("samples")',
        ),
    ),
    Answer(
        "16.2",
        "asks in another order, with sets and ratios",
        None,
        """\
def what_changed(plain, other):
    def flat(run, epoch):
        return [sum(rank["samples"][epoch], []) for rank in run]

    if sum(map(len, flat(other, 0))) * 2 <= sum(map(len, flat(plain, 0))):
        return "sharded twice"
    if flat(plain, 0) == flat(other, 0) and flat(plain, 1) != flat(other, 1):
        return "new order each epoch"
    if flat(plain, 0) != flat(other, 0):
        batch = other[1]["samples"][0][0]
        spread = max(batch) - min(batch) == len(batch) - 1 and batch == sorted(batch)
        return "dealt in batches" if spread else "shuffled"
    if [rank["losses"][0] for rank in plain] != [rank["losses"][0] for rank in other]:
        return "less precise"
    if other[0]["all_reduces"] == 0 or len({rank["gradients"][0] for rank in other}) > 1:
        return "not averaged"
    if len(other[0]["gradients"]) < len(plain[0]["gradients"]):
        return "accumulated"
    if plain[0]["rates"] != other[0]["rates"]:
        return "schedule too fast"
    ratio = plain[0]["gradients"][0] / other[0]["gradients"][0]
    return "loss divided" if ratio > 1.5 else "nothing"
""",
    ),
    Answer(
        "16.2",
        "looks for rates before steps, and backwards",
        None,
        """\
def what_changed(plain, other):
    first, second = plain[-1], other[-1]
    tests = {
        "sharded twice": lambda: len(second["losses"]) < len(first["losses"]),
        "dealt in batches": lambda: all(
            list(range(batch[0], batch[0] + len(batch))) == batch
            for rank in other for epoch in rank["samples"] for batch in epoch
        ),
        "shuffled": lambda: first["samples"][0] != second["samples"][0],
        "new order each epoch": lambda: first["samples"] != second["samples"],
        "less precise": lambda: first["losses"][0] != second["losses"][0],
        "schedule too fast": lambda: second["rates"] != first["rates"][: len(second["rates"])],
        "accumulated": lambda: len(second["rates"]) < len(first["rates"]),
        "not averaged": lambda: second["gradients"][0] != other[0]["gradients"][0],
        "loss divided": lambda: second["gradients"][0] != first["gradients"][0],
    }
    return next((name for name, test in tests.items() if test()), "nothing")
""",
    ),
]
