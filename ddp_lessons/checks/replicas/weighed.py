"""
Weighted sums of the ranks' own gradients, by which task 05.2 judges an answer.
"""

import torch

from ddp_lessons.checks.kit import words
from ddp_lessons.checks.replicas.gradients import (
    agrees,
    cast_like,
    first_apart,
    gradients_of,
    inputs_of,
    weighted_sum,
)
from ddp_lessons.checks.replicas.layers import Model


def _layers(model):
    return [name for name, _ in model.named_children()]


def backward_once(case, rank, model):
    """
    Run backward on a rank's model, with the loss that the case defines. Return the model.
    """
    names = _layers(model)
    names = names[:-1] if rank in case["head unused on ranks"] else names
    loss = model(inputs_of(case, rank, model), names)
    if not case["samples"][rank]:
        loss = loss * torch.nan  # the mean over no samples is nan
    loss.backward()
    if rank == case.data.get("nan on rank"):
        model.head.bias.grad[0] = torch.nan
    return model


def own_gradients(case):
    """
    Return each rank's own gradient table in float64. A rank without samples has only None in it.
    """
    models = [Model(case, dtype=torch.float64) for _ in range(case.world_size)]
    tables = [gradients_of(backward_once(case, rank, model)) for rank, model in enumerate(models)]
    return [
        table if num_samples else dict.fromkeys(table)
        for table, num_samples in zip(tables, case["samples"], strict=True)
    ]


def own_of(view):
    """
    Return the own gradient tables of all ranks of a View's case.
    """
    kept = view.case_result.seen[0].output  # computed once for all ranks and mistakes
    if "own" not in kept:
        kept["own"] = own_gradients(view.case)
    return kept["own"]


def limits_of(case):
    """
    Return the arguments `num_roundings` and `unit` of `agrees` for a case.
    """
    # There are roundings of a share, its product, at most w - 1 sums, and a division: 3 + (w - 1).
    # An answer that averages first, and then weights the average again, rounds twice more.
    unit = torch.finfo(getattr(torch, case["dtype"])).eps / 2
    return {"num_roundings": case.world_size + 4, "unit": unit}


def shares_of(case):
    """
    Return each rank's share of all samples, a list of numbers from 0 to 1.
    """
    return [num / sum(case["samples"]) for num in case["samples"]]


def is_sum(view, *rows, rank=None):
    """
    Tell whether a rank's gradient is the sum of all ranks' own, weighted by one of these rows.

    `rank` is the rank to judge; None: the rank of the View.
    """
    got = view.case_result.seen[view.rank if rank is None else rank].output["gradient"]
    own, limits = own_of(view), limits_of(view.case)
    return any(agrees(got, own, row, **limits) for row in rows)


def is_wrong(view):
    """
    Tell whether a rank's gradient is not that of the whole batch.
    """
    return not is_sum(view, shares_of(view.case))


def farthest_apart(view):
    """
    Return (name, gradient, right gradient) of the parameter whose gradient is farthest off.
    """
    total, _ = weighted_sum(own_of(view), shares_of(view.case))
    name = first_apart(view.output["gradient"], total)
    return name, view.output["gradient"][name], total[name]


def fact_of_gradient(view):
    """
    Return a sentence that says which parameter's gradient is farthest off, and its value.
    """
    apart, got, total = farthest_apart(view)
    right = cast_like(total, view.output["weights"][apart])
    return (
        f"The gradient of {apart} is not that of the whole batch. It is {words(got)}, and "
        f"{words(right)} is right."
    )


def wrong_if(shows):
    """
    Return a `shows` for a wrong gradient: it names the worst one if the given `shows` holds, too.
    """
    return lambda view: is_wrong(view) and shows(view) and fact_of_gradient(view)
