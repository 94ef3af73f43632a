"""
What a step of an overlapped replica should give, and what it gives if something is done wrong.
"""

from itertools import chain

import torch

from ddp_lessons.checks.replicas.gradients import agrees, gradients_of, inputs_of
from ddp_lessons.checks.replicas.layers import Model


def ways_of(case, rank, number=0):
    """
    Return the layers that each micro-batch of a rank's step goes through, in order.
    """
    names = [*(f"layer{number}" for number in range(len(case["layers"]))), "head"]
    if number != 1 and "layer2" in case.data:
        names.remove("layer2")
    if rank in case.data.get("other order on", ()):
        names = ["layer0", "layer2", "layer1", "head"]
    ways = [names] * case["micro_batches"]
    if rank == case.data.get("on rank") and number + 1 >= case.data.get("in step", 1):
        ways = [*ways[:-1], [name for name in names if name not in case["without"]]]
    return ways


def step_gradients(case, number, first=0, without=()):
    """
    Return each rank's gradient of one step, as it adds up from a micro-batch on.
    """
    tables = []
    for rank in range(case.world_size):
        model, ways = Model(case, dtype=torch.float64), ways_of(case, rank, number)
        for place, way in list(enumerate(ways))[first:]:
            batch = number * len(ways) + place
            model(inputs_of(case, rank, model, batch), way).backward()
        table = gradients_of(model)
        tables.append({name: None if name in without else one for name, one in table.items()})
        if rank != case.data.get("on rank"):
            tables[-1] = table
    return tables


def those_of(names, table):
    """
    Return the part of a table that has some names.
    """
    return {name: table[name] for name in names}


def ways_to_be_wrong(case, rank, number, own):
    """
    Return mistakes that give a gradient, each with the tables and the weights that it adds up.
    """
    w, m = case.world_size, case["micro_batches"]
    mean, is_own = [1 / w] * w, [float(other == rank) for other in range(w)]
    from_on = [step_gradients(case, number, first=first) for first in range(m)]
    left_out = [name for name in own[0] if name.split(".")[0] in case.data.get("without", ())]
    last, zeros = from_on[-1], step_gradients(case, number, without=left_out)
    # What came in micro-batch k, from 0, is divided m - k times.
    times = [w ** -(m - k) for k in range(m)]
    shares = [now - before for now, before in zip(times, [0.0, *times], strict=False)]
    odd = case.data.get("on rank")
    whole = [_scaled(own[r], left_out, w) if r == odd else own[r] for r in range(w)]
    here = [_scaled(table, left_out, w) for table in own] if rank == odd else own
    return [
        ("summed", own, [1.0] * w),
        ("twice", own, [1 / w**2] * w),
        ("local", own, is_own),
        ("last-only", last, mean),
        ("last-only", [own[rank], last[rank], *last], [1.0, -1.0, *mean]),
        ("zeros", zeros, mean),
        ("each-divided", list(chain(*from_on)), [share for share in shares for _ in range(w)]),
        ("some-divided", whole, mean),
        ("some-divided", here, mean),
        ("added", own, [one + 1 / w for one in is_own]),
        *([("by-micro-batches", own, [1 / w / m] * w)] if m > 1 else []),
        *(("other-size", own, [1 / size] * w) for size in range(2, 9)),
    ]


def _scaled(table, names, factor):
    return {
        name: one * factor if name in names and one is not None else one
        for name, one in table.items()
    }


def is_left_over(case, number, got, own, judged):
    """
    Tell whether numbers hold the mean of the step before as well, once, or once for each rank.
    """
    w = case.world_size
    both = [*own, *(those_of(got, table) for table in step_gradients(case, number - 1))]
    rows = [[1 / w] * w + [share] * w for share in (1.0, 1 / w, 1 / w**2)]
    return any(agrees(got, both, row, **judged) for row in rows)
