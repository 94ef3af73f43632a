"""
Sources from which the answers of exercise 12 are made.
"""

from bank import changing

IMPORTS = """\
import torch
import torch.distributed as dist


"""

F1 = """\
def macro_f1(counts):
    total = counts.clone()
    dist.all_reduce(total)
    right = total.diagonal()
    named = total.sum(0) + total.sum(1)
    f1 = 2 * right.double() / named
    return f1[named > 0].mean().item()
"""

OWN_F1 = """\
def f1_of(counts):
    right = counts.diagonal()
    named = counts.sum(0) + counts.sum(1)
    occurs = named > 0
    f1 = 2 * right[occurs].double() / named[occurs]
    return f1.mean() if occurs.any() else 0.0 * named.sum()


"""

FORWARD = """\
def sync_forward(layer, x):
    wide = x.double()
    count = torch.tensor([float(len(x))], dtype=torch.float64, device=x.device)
    own = torch.cat([count, wide.sum(0), wide.square().sum(0)])
    dist.all_reduce(own)
    n = own[0]
    mean, squares = (own[1:] / n).chunk(2)
    var = squares - mean ** 2
    y = (wide - mean) / torch.sqrt(var + layer.eps)
    y = y * layer.weight + layer.bias
    m = layer.momentum
    with torch.no_grad():
        layer.running_mean.copy_((1 - m) * layer.running_mean + m * mean)
        layer.running_var.copy_((1 - m) * layer.running_var + m * var * n / (n - 1))
        layer.num_batches_tracked += 1
    return y.to(x.dtype)
"""

BACKWARD = """\
def sync_backward(grad_y, normal, inverse, weight, num_global):
    grad_bias = grad_y.sum(0)
    grad_weight = (grad_y * normal).sum(0)
    both = torch.stack([grad_bias, grad_weight])
    dist.all_reduce(both)
    mean, slope = both / num_global
    inner = grad_y - mean - normal * slope
    return weight * inverse * inner, grad_weight, grad_bias
"""

STOP = """\
def should_stop(notes, total, num_samples, time_is_up):
    own = [total, num_samples, float(time_is_up)]
    sums = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(sums)
    loss = (sums[0] / sums[1]).item()
    if loss < notes["best"] - notes["min_delta"]:
        notes["best"] = loss
        notes["bad_epochs"] = 0
    else:
        notes["bad_epochs"] += 1
    return notes["bad_epochs"] >= notes["patience"] or sums[2].item() > 0
"""

SOURCES = {"12.1": F1, "12.2": FORWARD, "12.3": BACKWARD, "12.4": STOP}

altered = changing({number: IMPORTS + source for number, source in SOURCES.items()})
