"""
What one process makes of the layer of task 15.1, and of the mistakes that show in its numbers.

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
    Return the weight that all ranks begin with.
    """
    return _numbers(case, ("weight",), (case["out"], case["in"]))


def samples_of(case, rank, step):
    """
    Return a rank's x of a step, and the gradient of its output.
    """
    x = _numbers(case, ("x", rank, step), (NUM_SAMPLES, case["in"]))
    return x, _numbers(case, ("gradient", rank, step), (NUM_SAMPLES, case["out"]))


def plain_run(case, how="mean"):
    """
    Return for each step what each rank's output and gradient of x are in one process.

    A case may be "adding": nobody empties the gradient, so that each step goes by all so far.

    Args:
        case: The case.
        how: "mean": as it should be. "last": each step goes by its own gradient alone. "sum",
            "divided twice", "none" (the weight stays), "own flat" and "own rows" (each part goes by
            its owner's gradient) are mistakes, too.
    """
    weight, steps, w, moved = weight_of(case), [], case.world_size, 0
    for step in range(case["steps"]):
        pairs = [samples_of(case, rank, step) for rank in range(w)]
        steps.append([(x @ weight.T, g @ weight) for x, g in pairs])
        own = torch.stack([g.T @ x for x, g in pairs])
        is_adding = "adding" in case.data and how != "last"
        moved = _moved(own, how) + (moved if is_adding else 0)
        weight = weight - RATE * moved
    return steps


def _moved(own, how):
    w = len(own)
    factor = {"mean": 1 / w, "last": 1 / w, "sum": 1, "divided twice": 1 / w**2, "none": 0}
    if how in factor:
        return own.sum(0) * factor[how]
    flat = own.flatten(1)
    length = -(-flat.shape[1] // w) if how == "own flat" else -(-own.shape[1] // w) * own.shape[2]
    owner = torch.arange(flat.shape[1]) // length
    return flat.gather(0, owner[None])[0].view(own.shape[1:])


def is_near(got, right):
    """
    Tell whether two tensors are alike, up to rounding.
    """
    # Whole numbers below 1000 and their products, some 100 roundings of sums below 100,000.
    slack = 100 * 1e5 * torch.finfo(right.dtype).eps
    return got.shape == right.shape and bool(((got - right).abs() <= slack).all())


def mistake_of(case, rank, step, got, place):
    """
    Return the name of the mistake that gives these numbers: the output (place 0) or x.grad (1).
    """
    if step == 0:
        return "values"
    names = {"sum": "summed", "divided twice": "divided", "none": "stale"}
    names |= {"last": "not-added"} if "adding" in case.data else {}
    names |= {"own flat": "not-averaged", "own rows": "not-averaged"}
    for how, name in names.items():
        if is_near(got, plain_run(case, how)[step][rank][place]):
            return name
    return "values"
