"""
Answers to task 12.3.
"""

from bank import Answer

from wrong_answers.metrics.sources import IMPORTS, altered

REDUCE = "    dist.all_reduce(both)\n"
INNER = "grad_y - mean - normal * slope"
RETURN = "    return weight * inverse * inner, grad_weight, grad_bias\n"

ANSWERS = [
    altered(
        "12.3",
        "takes means over its own samples",
        "own-sums",
        (REDUCE, "    num_global = max(len(grad_y), 1)\n"),
    ),
    altered(
        "12.3",
        "divides by its own samples",
        "own-count",
        ("both / num_global", "both / max(len(grad_y), 1)"),
    ),
    altered(
        "12.3",
        "takes the mean of means",
        "mean-of-means",
        (REDUCE, "    both /= max(len(grad_y), 1)\n" + REDUCE),
        ("both / num_global", "both / dist.get_world_size()"),
    ),
    altered("12.3", "takes mean and spread for constants", "constant", (INNER, "grad_y")),
    altered("12.3", "forgets the mean", "no-mean-term", (INNER, "grad_y - normal * slope")),
    altered("12.3", "forgets the spread", "no-spread-term", (INNER, "grad_y - mean")),
    altered("12.3", "forgets to divide", "undivided", ("both / num_global", "both")),
    altered(
        "12.3",
        "divides by ranks",
        "by-ranks",
        ("both / num_global", "both / dist.get_world_size()"),
    ),
    altered("12.3", "forgets the weight", "scale", ("weight * inverse * inner", "inverse * inner")),
    altered(
        "12.3",
        "weighs inside the brackets too",
        "weighted-twice",
        ("both / num_global", "both * weight / num_global"),
    ),
    altered("12.3", "takes N - 1", "unbiased", ("both / num_global", "both / (num_global - 1)")),
    altered("12.3", "mixes up the two means", "swapped", ("mean, slope =", "slope, mean =")),
    altered(
        "12.3",
        "sends halves",
        "digits",
        (
            REDUCE,
            "    both = both.half()\n    dist.all_reduce(both)\n    both = both.to(normal.dtype)\n",
        ),
    ),
    altered(
        "12.3",
        "returns the sums of all",
        "parameters-reduced",
        (", grad_weight, grad_bias\n", ", both[1], both[0]\n"),
    ),
    altered(
        "12.3",
        "returns their means",
        "parameters-averaged",
        (", grad_weight, grad_bias\n", ", grad_weight / max(1, len(normal)), grad_bias\n"),
    ),
    altered(
        "12.3",
        "returns bias before weight",
        "parameters-swapped",
        (", grad_weight, grad_bias\n", ", grad_bias, grad_weight\n"),
    ),
    altered(
        "12.3",
        "weighs the gradient of the weight",
        "parameters-weighted",
        (", grad_weight, grad_bias\n", ", grad_weight * weight, grad_bias\n"),
    ),
    altered(
        "12.3",
        "takes gradients of x for those of y",
        "parameters",
        (
            RETURN,
            "    grad_x = weight * inverse * inner\n"
            "    return grad_x, (grad_x * normal).sum(0), grad_bias\n",
        ),
    ),
    altered(
        "12.3",
        "does not add up over samples",
        "not-summed",
        (", grad_weight, grad_bias\n", ", grad_y * normal, grad_y.clone()\n"),
    ),
    altered("12.3", "returns the first alone", "not-three", (", grad_weight, grad_bias\n", "\n")),
    altered("12.3", "returns nothing", "nothing", (RETURN, "")),
    altered(
        "12.3", "subtracts in place", "input-changed", (INNER, "grad_y.sub_(mean) - normal * slope")
    ),
    altered(
        "12.3",
        "divides by its number of samples",
        "raised",
        ("    grad_bias = grad_y.sum(0)\n", "    grad_bias = grad_y.sum(0)\n    1 / len(grad_y)\n"),
    ),
    altered(
        "12.3",
        "leaves without samples",
        "deadlock",
        (
            "    grad_bias =",
            "    zero = torch.zeros_like(weight)\n"
            "    if not len(grad_y): return grad_y.clone(), zero, zero.clone()\n    grad_bias =",
        ),
    ),
    altered(
        "12.3",
        "makes two collectives",
        "cost",
        (REDUCE, "    for one in both: dist.all_reduce(one)\n"),
    ),
    altered(
        "12.3",
        "sends the number of samples, too",
        "bytes",
        (
            REDUCE,
            "    both = torch.cat([both, both.new_full((1, len(weight)), len(normal))]).double()\n"
            "    dist.all_reduce(both)\n    both = both[:2].to(normal.dtype)\n",
        ),
    ),
    altered(
        "12.3",
        "returns float64",
        "dtype",
        (
            "weight * inverse * inner",
            "(weight * inverse * inner).to(torch.bfloat16).to(torch.float64)",
        ),
    ),
    altered("12.3", "adds the spread", "values", ("- normal * slope", "+ normal * slope")),
    Answer(
        "12.3",
        "lets autograd go through the sums",
        None,
        IMPORTS
        + """\
def sync_backward(grad_y, normal, inverse, weight, num_global):
    y = weight.clone().requires_grad_(), torch.zeros_like(weight).requires_grad_()
    torch.autograd.backward(y[0] * normal + y[1], grad_y)
    local = torch.cat([one.grad for one in y]).double()
    everyone = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, local)
    slope, mean = (sum(everyone) / num_global).to(normal.dtype).chunk(2)
    grad_x = torch.addcmul(grad_y - mean, normal, slope, value=-1) * (weight * inverse)
    return [grad_x, y[0].grad, y[1].grad]
""",
    ),
    altered(
        "12.3",
        "multiplies out",
        None,
        (
            RETURN,
            "    scale = weight * inverse\n"
            "    grad_x = scale * grad_y - scale * mean - normal * (scale * slope)\n"
            "    return grad_x, grad_weight, grad_bias\n",
        ),
    ),
]
