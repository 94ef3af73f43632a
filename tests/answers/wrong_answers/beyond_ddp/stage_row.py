"""
Answers to task 15.3.
"""

from bank import Answer, changing

_ROW = """\
def stage_row(stage, num_stages, num_microbatches):
    warm_up = min(num_stages - stage - 1, num_microbatches)
    row = []
    for m in range(warm_up):
        row.append(("F", m))
    for m in range(warm_up, num_microbatches):
        row.append(("F", m))
        row.append(("B", m - warm_up))
    for m in range(num_microbatches - warm_up, num_microbatches):
        row.append(("B", m))
    return row
"""

altered = changing({"15.3": _ROW})

ANSWERS = [
    Answer(
        "15.3",
        "does all forwards first, as GPipe does",
        "all-first",
        """\
def stage_row(stage, num_stages, num_microbatches):
    kinds = "FB"
    return [(kind, m) for kind in kinds for m in range(num_microbatches)]
""",
    ),
    Answer(
        "15.3",
        "takes one microbatch after the other on every stage",
        "slow",
        """\
def stage_row(stage, num_stages, num_microbatches):
    return [(kind, m) for m in range(num_microbatches) for kind in "FB"]
""",
    ),
    altered(
        "15.3",
        "begins with as many forwards on every stage",
        "holds",
        ("num_stages - stage - 1", "num_stages - 1"),
    ),
    altered(
        "15.3",
        "lets the last stage begin with most forwards",
        "deadlock",
        ("num_stages - stage - 1", "stage"),
    ),
    altered(
        "15.3",
        "does no more forwards than stages before it stops",
        "missing",
        ("    for m in range(num_microbatches - warm_up, num_microbatches):", "    for m in []:"),
    ),
    altered(
        "15.3",
        "does the first backwards again in the end",
        "twice",
        ("range(num_microbatches - warm_up, num_microbatches)", "range(warm_up)"),
    ),
    altered(
        "15.3",
        "begins with forwards of microbatches that are not there",
        "unknown",
        ("min(num_stages - stage - 1, num_microbatches)", "num_stages - stage - 1"),
    ),
    altered(
        "15.3",
        "begins with a backward in each turn",
        "early",
        (
            '        row.append(("F", m))\n        row.append(("B", m - warm_up))',
            '        row.append(("B", m - warm_up))\n        row.append(("F", m))',
        ),
    ),
    altered(
        "15.3",
        "returns words such as F0",
        "form",
        ("    return row", '    return [f"{kind}{m}" for kind, m in row]'),
    ),
    altered(
        "15.3",
        "takes the rank that runs for the stage",
        "more-stages",
        (
            "    warm_up",
            "    import torch.distributed as dist\n    stage = dist.get_rank()\n    warm_up",
        ),
    ),
    altered(
        "15.3",
        "divides by the stages behind",
        "raised",
        ("    row = []", "    row, share = [], num_microbatches // (num_stages - stage - 1)"),
    ),
    altered(
        "15.3",
        "goes on with the row of the last call",
        "kept",
        ("def stage_row", "row = []\n\n\ndef stage_row"),
        ("    row = []\n    for", "    for"),
    ),
    altered(
        "15.3",
        "waits for the other stages",
        "forbidden",
        ("    row = []", "    import torch.distributed as dist\n    dist.barrier()\n    row = []"),
    ),
    Answer(
        "15.3",
        "plays all stages with a clock, backwards first",
        None,
        """\
def stage_row(stage, num_stages, num_microbatches):
    free = [0] * num_stages
    rows = [[] for _ in range(num_stages)]
    done = {}
    for now in range(3 * (num_microbatches + num_stages)):
        for s in range(num_stages):
            if free[s] > now:
                continue
            done_f = sum(kind == "F" for kind, _ in rows[s])
            done_b = len(rows[s]) - done_f
            behind = ("B", done_b, s + 1)
            may_b = done_b < done_f and (s == num_stages - 1 or done.get(behind, now + 1) <= now)
            before = ("F", done_f, s - 1)
            may_f = done_f < num_microbatches and (s == 0 or done.get(before, now + 1) <= now)
            if may_b:
                rows[s].append(("B", done_b))
                free[s] = done["B", done_b, s] = now + 2
            elif may_f and done_f - done_b < num_stages - s:
                rows[s].append(("F", done_f))
                free[s] = done["F", done_f, s] = now + 1
    return rows[stage]
""",
    ),
    Answer(
        "15.3",
        "begins with the last microbatch, and returns a tuple of lists",
        None,
        """\
def stage_row(stage, num_stages, num_microbatches):
    last = num_microbatches - 1
    ahead = num_stages - stage
    # forward m comes just before backward m - ahead + 1
    keyed = [(max(m - ahead + 1, 0) - 0.5, m, "F") for m in range(num_microbatches)]
    keyed += [(m, m, "B") for m in range(num_microbatches)]
    return tuple([kind, last - m] for _, m, kind in sorted(keyed))
""",
    ),
]
