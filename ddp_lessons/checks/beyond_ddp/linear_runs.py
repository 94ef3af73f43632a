"""
The runs of task 15.1's layer in one process: the right one, and those with common mistakes.

Legend: w ranks; weight (O, I); x (N, I); output (N, O).
"""

import torch

from ddp_lessons.checks.kit import generator

RATE, NUM_SAMPLES = 0.5, 2


def _numbers(case, what, shape):
    rng = generator(case, what)
    dtype = getattr(torch, case["dtype"])
    return torch.randint(-3, 4, shape, generator=rng).to(dtype)


def weight_of(case):
    """
    Return the weight that all ranks start with.
    """
    return _numbers(case, ("weight",), (case["out"], case["in"]))


def samples_of(case, rank, step):
    """
    Return a rank's x in a step, and the gradient of its output.
    """
    x = _numbers(case, ("x", rank, step), (NUM_SAMPLES, case["in"]))
    return x, _numbers(case, ("gradient", rank, step), (NUM_SAMPLES, case["out"]))


def plain_run(case, rank, how="mean"):
    """
    Return the output and the gradient of x that a rank has in each step, computed by one process.

    In a case with "adding" the gradient is not zeroed, so that each step uses the sum of all so
    far.

    Args:
        case: The Case.
        rank: The rank.
        how: "mean" is the right way. Mistakes are "last", where each step uses only its own
            gradient; "sum", the sum over ranks; and "own flat" and "own rows", where each part uses
            its owner's gradient, for parts of equally many numbers or rows.
    """
    weight, found, moved = weight_of(case), {}, 0
    for step in range(case["steps"]):
        pairs = [samples_of(case, other, step) for other in range(case.world_size)]
        x, gradient = pairs[rank]
        found[f"the output of step {step + 1}"] = x @ weight.T
        if "first" not in case.data:
            found[f"x.grad of step {step + 1}"] = gradient @ weight
        is_adding = "adding" in case.data and how != "last"
        moved = _moved(torch.stack([g.T @ x for x, g in pairs]), how) + is_adding * moved
        weight = weight - RATE * moved
    return found


def slack_of(case):
    """
    Return how far a number may be off by rounding.
    """
    # Numbers are whole and below 1000. About 100 sums of products, below 100,000, are rounded.
    return 100 * 1e5 * torch.finfo(getattr(torch, case["dtype"])).eps


def _moved(own, how):
    if how in ("mean", "last"):
        return own.mean(0)
    if how == "sum":
        return own.sum(0)
    w, num_rows, num_columns = own.shape
    flat = own.flatten(1)
    length = -(-flat.shape[1] // w) if how == "own flat" else -(-num_rows // w) * num_columns
    owner = torch.arange(flat.shape[1]) // length
    return flat.gather(0, owner[None])[0].view(num_rows, num_columns)
