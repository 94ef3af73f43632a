"""
The layers of task 15.2, and the results that one process computes with them.

Legend: lines are groups of ranks, each with its own pair of layers and its own inputs. All numbers
are whole, except for a half in each bias of the first layer: so no hidden number is 0, where relu's
gradient is a matter of definition. No sum reaches 2**22, so that every order of adding gives the
same bits. Runs: the first input is (rows, in) and needs a gradient, the second is (2, rows, in) and
needs none.
"""

import torch
from torch import nn

from ddp_lessons.checks.kit import whole_numbers

NAMES = ("column.weight", "column.bias", "row.weight", "row.bias")
MOST = 3
MOST_OFF = 1e-3
"""
How far a number may be off. Right numbers are whole or halves, and a mistake moves at least one by
an eighth or more. An answer that divides by the number of ranks and multiplies again rounds by 1e-7
of numbers below 10,000.
"""


def lines_of(case):
    """
    Return the groups of ranks that share layers, as lists of ranks.
    """
    return case.data.get("groups") or [list(range(case.world_size))]


def line_of(case, rank):
    """
    Return the number of a rank's line, and its ranks.
    """
    return next((at, line) for at, line in enumerate(lines_of(case)) if rank in line)


def layers_of(case, line):
    """
    Return the two whole layers of a line.
    """
    dtype = getattr(torch, case["dtype"])
    made = []
    for name, num_in, num_out in (
        ("first", case["in"], case["hidden"]),
        ("second", case["hidden"], case["out"]),
    ):
        layer = nn.Linear(num_in, num_out, dtype=dtype)
        for kind, parameter in layer.named_parameters():
            numbers = _numbers(case, (line, name, kind), parameter.shape)
            parameter.data = numbers + 0.5 if (name, kind) == ("first", "bias") else numbers
        made.append(layer)
    return made


def input_of(case, line, run):
    """
    Return the input of a run, which is the same on all ranks of a line.
    """
    shape = (case["rows"], case["in"]) if run == 0 else (2, case["rows"], case["in"])
    return _numbers(case, (line, "input", run), shape).requires_grad_(run == 0)


def upstream_of(case, line, run):
    """
    Return the gradient of the output that backward gets.
    """
    shape = (*input_of(case, line, run).shape[:-1], case["out"])
    return _numbers(case, (line, "upstream", run), shape)


def _numbers(case, key, shape):
    return whole_numbers(case, key, shape, getattr(torch, case["dtype"]), most=MOST)


def part_of(name, whole, place, num):
    """
    Return a rank's part of a whole tensor.

    Args:
        name: The tensor's name in a pair, one of NAMES.
        whole: The whole tensor.
        place: The rank's number in its line.
        num: Number of ranks in the line.
    """
    if name == "row.bias":
        return whole
    return whole.chunk(num, dim=1 if name == "row.weight" else 0)[place]


def share_bytes(case, num):
    """
    Return the bytes of all parts that each of `num` ranks holds.
    """
    numbers = case["hidden"] // num * (case["in"] + 1 + case["out"]) + case["out"]
    return numbers * getattr(torch, case["dtype"]).itemsize


def one_process(case, line, run, *, relu=True):
    """
    Return the results of one process with whole layers: {"y", "x.grad" and NAMES: tensor}.
    """
    first, second = layers_of(case, line)
    x = input_of(case, line, run)
    hidden = first(x)
    y = second(hidden.relu() if relu else hidden)
    y.backward(upstream_of(case, line, run))
    grads = [p.grad for layer in (first, second) for p in layer.parameters()]
    return {"y": y.detach(), "x.grad": x.grad, **dict(zip(NAMES, grads, strict=True))}


def near(got, right):
    """
    Tell whether two tensors of one shape are equal up to rounding.
    """
    return bool(((got.double() - right.double()).abs() <= MOST_OFF).all())


def gradient_mistake(case, tables, rank, name, right, whole):
    """
    Return the name of the mistake that explains a wrong gradient.

    Args:
        case: The Case.
        tables: For each rank {"x.grad" and NAMES: gradient, or None}.
        rank: The rank whose gradient is wrong.
        name: The gradient's name.
        right: The right gradient of this rank.
        whole: The gradient of one process with whole layers.
    """
    got, (_, line) = tables[rank][name], line_of(case, rank)
    num = len(line)
    if got is None or got.shape != right.shape:
        return "bias-gradient" if name == "row.bias" else "gradient"
    if num > 1 and near(got, num * right):
        return "times"
    if name == "row.bias":
        return "bias-gradient"
    if num > 1 and near(got, right / num):
        return "averaged"
    if name == "x.grad":
        parts = [tables[other][name] for other in line]
        has_all = all(part is not None for part in parts)
        return "input-partial" if has_all and near(sum(parts), right) else "gradient"
    total = sum(part_of(name, whole, place, num) for place in range(num))
    is_summed = near(got, total) or near(got, total / num)
    return "weights-summed" if is_summed else "gradient"
