"""
The results of BatchNorm's forward in one process with all samples, and of usual mistakes.
"""

import torch
from torch import nn

from ddp_lessons.checks.metrics.op_costs import batch_of

NUM_CALLS = 2  # with other samples: the layer's statistics are judged after each
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def layer_of(case):
    """
    Return the layer that every rank of a case gets, on the CPU.
    """
    channels, dtype = case["channels"], getattr(torch, case["dtype"])
    layer = nn.BatchNorm1d(channels, eps=0.05, momentum=0.3)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.5, 2, channels))
        layer.bias.copy_(torch.linspace(3, 1, channels))
        layer.running_mean.copy_(torch.linspace(-2, 0.5, channels))
        layer.running_var.copy_(torch.linspace(4, 2, channels))
    return layer.to(dtype)


class Right:
    """
    The right results of one call, and the means to compute those of mistakes.

    Args:
        case: The Case.
        number: Number of the call, from 0.
    """

    def __init__(self, case, number):
        self.layer = layer_of(case).double()
        for call in range(number + 1):
            self.parts = [batch_of(case, rank, call).double() for rank in range(case.world_size)]
            self.whole = torch.cat(self.parts)
            self.old = {name: getattr(self.layer, name).clone() for name in STATISTICS}
            with torch.no_grad():
                self.layer(self.whole)
        self.mean = self.whole.mean(0)
        self.biased, self.unbiased = (self.whole.var(0, correction=one) for one in (0, 1))
        # The rounding errors of values and of their mean grow with their size. Their difference is
        # only as large as the spread, so its relative error grows with `distance`. A sum of squares
        # in float64 has an error in its last digits.
        rounds, distance = 8 + len(self.whole), self.mean.abs() / self.biased.sqrt()
        unit = torch.finfo(getattr(torch, case["dtype"])).eps / 2
        self.squares_off = rounds * torch.finfo(torch.float64).eps * self.mean.square()
        self.share = unit * (rounds + 4 * distance) + self.squares_off / self.biased
        self.unit = unit * rounds

    def y(self, rank, mean=None, variance=None, eps=None):
        """
        Return the output on a rank, by these statistics. Default: the right ones.
        """
        mean = self.mean if mean is None else mean
        variance = self.biased if variance is None else variance
        eps = self.layer.eps if eps is None else eps
        normal = (self.parts[rank] - mean) / (variance + eps).sqrt()
        with torch.no_grad():
            return normal * self.layer.weight + self.layer.bias

    def values(self, rank):
        """
        Return the output y of a rank and the layer's statistics, by name.
        """
        return {"y": self.y(rank)} | {name: getattr(self.layer, name) for name in STATISTICS}

    def most_off(self, rank):
        """
        Return by name how far each of the `values` may be off. None: it must be equal.
        """
        weights = self.layer.weight.abs() + self.layer.bias.abs()
        found = {"y": (self.share * (self.y(rank).abs() + weights)).detach()}
        for name, new in (("running_mean", self.mean), ("running_var", self.unbiased)):
            sizes = self.old[name].abs() + new.abs() + self.biased.sqrt()
            found[name] = self.unit * sizes + self.squares_off
        return found | {"num_batches_tracked": None}


def own_statistics(right, rank):
    """
    Return the outputs of a rank by its own mean and its own variances, unbiased or not.
    """
    part = right.parts[rank]
    spreads = [part.var(0, correction=one) for one in (0, 1) if len(part) > one]
    return [right.y(rank, part.mean(0), spread) for spread in spreads]


def means_of_means(right, rank):
    """
    Return the outputs by means of the ranks' means and variances: of all ranks, or of those with
    samples.
    """
    zero, w = torch.zeros_like(right.mean), len(right.parts)
    means = [part.mean(0) if len(part) else zero for part in right.parts]
    spreads = [part.var(0, correction=0) if len(part) else zero for part in right.parts]
    shares = [len(part) / len(right.whole) for part in right.parts]
    within = sum(share * one for share, one in zip(shares, spreads, strict=True))
    squares = sum(one + mean.square() for one, mean in zip(spreads, means, strict=True))
    found = [right.y(rank, variance=within)]
    for num in {w, sum(map(bool, shares))}:
        mean, spread = sum(means) / num, sum(spreads) / num
        around = (right.whole - mean).square().mean(0)
        variances = (spread, within, right.biased, squares / num - mean.square(), around)
        found += [right.y(rank, mean, variance) for variance in variances]
        found.append(right.y(rank, variance=spread))
    return found


def other_scales(right, rank):
    """
    Return the outputs of a rank with another eps, or without the layer's weight or bias.
    """
    normal = (right.parts[rank] - right.mean) / (right.biased.sqrt() + right.layer.eps)
    weight, bias = right.layer.weight.detach(), right.layer.bias.detach()
    bare = (right.y(rank) - bias) / weight
    others = [normal * weight + bias, bare, bare * weight, bare + bias]
    return [right.y(rank, eps=0.0), right.y(rank, eps=1e-5), *others]
