"""
A linear model that exercises train, and its gradients in float64 with the rounding that is allowed.

Shapes: F features; a batch of n samples: inputs (n, F), targets (n, 1); G = F + 1 trained numbers,
the weight and then the bias. The loss is torch's `mse_loss(model(inputs), targets)`.
"""

import torch
from torch import nn

from ddp_lessons.checks.kit.material.numbers import normal_numbers

_OTHER_ROUNDINGS = 16  # of one sample's part: forward, loss, weights, averaging, and the oracle's


class Regression(nn.Module):
    """
    Map (n, F) to (n, 1). A parameter is frozen: its gradient is always None.

    Args:
        case: The Case; the first weights follow from its seed.
        num_features: F.
        dtype: The dtype of all parameters.
    """

    def __init__(self, case, num_features, dtype):
        super().__init__()
        self.offset = nn.Parameter(torch.ones(1, dtype=dtype), requires_grad=False)
        self.linear = nn.Linear(num_features, 1, dtype=dtype)
        first = normal_numbers(case, None, (num_features + 1,), dtype)
        with torch.no_grad():
            self.linear.weight.copy_(first[None, :-1])
            self.linear.bias.copy_(first[-1:])

    def forward(self, inputs):
        """
        Return (n, 1) for inputs (n, F).
        """
        return self.linear(inputs) + self.offset


def regression_batches(case, rank, sizes, num_features, dtype):
    """
    Return the batches of one rank, each (inputs, targets) in memory of its own.

    Args:
        case: The Case, whose seed decides.
        rank: The rank.
        sizes: The number of samples of each batch.
        num_features: F.
        dtype: Their dtype.
    """
    numbers = normal_numbers(case, rank, (sum(sizes), num_features + 1), dtype)
    return [(part[:, :-1].clone(), part[:, -1:].clone()) for part in numbers.split(sizes)]


def trained(model):
    """
    Return the trained parameters of a model as one tensor, (G,).
    """
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def gradient(model):
    """
    Return the gradient of a model as one tensor, (G,); None if a trained parameter has none.
    """
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    if any(one is None for one in gradients):
        return None
    return torch.cat([one.flatten() for one in gradients])


def batch_gradients(weights, batches, num_terms):
    """
    Return the gradient of each batch's mean loss, and how far another way to it may be off.

    A sum of products in floating point is off by at most c u / (1 - c u) times the sum of the
    absolute products, if no term goes through more than c roundings, whatever their order.

    Args:
        weights: (G,), the trained parameters.
        batches: m batches.
        num_terms: How many samples of all ranks enter the sum that is compared.

    Returns:
        tuple: Gradients and errors, both (m, G) float64.

    Source: N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    num_roundings = len(weights) + num_terms + _OTHER_ROUNDINGS
    share = num_roundings * torch.finfo(weights.dtype).eps / 2
    exact, largest = [], []
    for inputs, targets in batches:
        ones = torch.ones(len(inputs), 1, dtype=torch.float64)
        extended = torch.cat([inputs.double(), ones], dim=1)  # (n, F) -> (n, G)
        weight, target = weights.double()[:, None], targets.double()
        apart = extended @ weight + 1 - target  # (n, G) (G, 1) -> (n, 1)
        size = extended.abs() @ weight.abs() + 1 + target.abs()
        exact.append((2 / len(inputs) * extended.T @ apart)[:, 0])
        largest.append((2 / len(inputs) * extended.T.abs() @ size)[:, 0])
    return torch.stack(exact), share / (1 - share) * torch.stack(largest)
