"""
Gradient tables of tasks 05.2 and 05.4, and tests of how far a gradient may be off.
"""

import torch

from ddp_lessons.checks.kit import whole_numbers


def inputs_of(case, rank, model, batch=0):
    """
    Return {name of a parameter: its input} for one batch of a rank.

    A tied weight has an input for each of its names.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    sizes = [parameter.numel() for parameter in named.values()]
    # The batches are rows of one draw, so that they differ.
    numbers = whole_numbers(case, rank, [batch + 1, sum(sizes)])[batch]
    first = next(iter(named.values()))
    parts = numbers.to(first.device, first.dtype).split(sizes)
    pairs = zip(named.items(), parts, strict=True)
    return {name: part.view_as(parameter) for (name, parameter), part in pairs}


def gradients_of(model):
    """
    Return {name of a parameter: its gradient or None}.
    """
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def weighted_sum(gradients, weights):
    """
    Return the weighted sum of gradients, and the sum of its absolute terms, as float64 tables.
    """
    total, size = {}, {}
    for name in gradients[0]:
        terms = [
            torch.zeros((), dtype=torch.float64) if gradient[name] is None else gradient[name]
            for gradient in gradients
        ]
        pairs = list(zip(weights, terms, strict=True))
        total[name] = sum(weight * term.double() for weight, term in pairs)
        size[name] = sum(abs(weight) * term.double().abs() for weight, term in pairs)
    return total, size


def _zeros_for_none(got, like):
    return torch.zeros(like.shape, dtype=torch.float64) if got is None else got.double()


def agrees(got, gradients, weights, num_roundings, unit):
    """
    Tell whether a gradient table is the weighted sum of other tables, up to rounding errors.

    Each term may be rounded `num_roundings` times, each time by a share `unit` of its value.
    """
    total, size = weighted_sum(gradients, weights)
    share = num_roundings * unit / (1 - num_roundings * unit)
    return all(
        bool(_is_near(_zeros_for_none(got[name], one), one, share * size[name]).all())
        for name, one in total.items()
    )


def _is_near(got, right, error):
    return ((got - right).abs() <= error) | (got.isnan() & right.isnan())


def first_apart(got, total):
    """
    Return the name of the parameter whose gradient differs most from that of the table `total`.

    The largest difference of a single number decides, and the first of several equal ones.
    """

    def distance(name):
        one = _zeros_for_none(got[name], total[name])
        apart = (one - total[name]).abs().nan_to_num(torch.inf)
        return float(apart.where(~_is_near(one, total[name], 0.0), 0.0).max())

    return max(total, key=distance)


def cast_like(total, parameter):
    """
    Return a sum in the shape and dtype of a parameter.
    """
    return total.expand(parameter.shape).to(parameter.dtype)
