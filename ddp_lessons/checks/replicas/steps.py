"""
Gradients of a step of an overlapped replica: the right ones, and those of common mistakes.
"""

import torch

from ddp_lessons.checks.replicas.gradients import gradients_of, inputs_of
from ddp_lessons.checks.replicas.layers import Model


def ways_of(case, rank, number=0):
    """
    Return, for each micro-batch of a rank's step, the names of its layers in order of the forward.
    """
    names = [*(f"layer{number}" for number in range(len(case["layers"]))), "head"]
    if number != 1 and "layer2" in case.data:
        names.remove("layer2")
    if rank in case.data.get("other order on ranks", ()):
        names = ["layer0", "layer2", "layer1", "head"]
    ways = [names] * case["micro_batches"]
    if rank == case.data.get("on rank") and number + 1 >= case.data.get("in step", 1):
        ways = [*ways[:-1], [name for name in names if name not in case["without"]]]
    return ways


def step_gradients(case, number, first=0):
    """
    Return each rank's gradient table of one step, added up from micro-batch number `first` on.
    """
    tables = []
    for rank in range(case.world_size):
        model, ways = Model(case, dtype=torch.float64), ways_of(case, rank, number)
        for place, way in list(enumerate(ways))[first:]:
            batch = number * len(ways) + place
            model(inputs_of(case, rank, model, batch), way).backward()
        tables.append(gradients_of(model))
    return tables


def those_of(names, table):
    """
    Return the entries of a table that have these names.
    """
    return {name: table[name] for name in names}


def ways_to_be_wrong(case, rank, number, own):
    """
    Return (mistake, tables, weights) for each mistake that gives a weighted sum of gradient tables.
    """
    w = case.world_size
    mean, last = [1 / w] * w, step_gradients(case, number, first=case["micro_batches"] - 1)
    return [
        ("summed", own, [1.0] * w),
        ("twice", own, [1 / w**2] * w),
        ("last-only", last, mean),
        ("last-only", [own[rank], last[rank], *last], [1.0, -1.0, *mean]),
    ]
