"""
Toys in whole numbers: float32 adds them up without rounding, in any order.

Shapes: B elements of a tensor; N samples of F features.

A float32 holds every whole number up to 2 ** 24. As long as no sum leaves that range, the order of
adding does not matter, and a result is equal to what it should be or it is wrong. Nothing is
"close enough".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import BadInput
from .seeds import rank_generator, seeded

MAX_TALLY_RANKS = 7  # 9,999,999 is below 2 ** 24, eight nines are not
_LARGEST = 8  # of whole_numbers: a product of two is at most 64


def tally(rank: int, num_elements: int = 1) -> torch.Tensor:
    """
    Make a tensor whose sum over ranks shows in its decimal digits who is in it, and how often.

    Element i of rank r is (i mod 9 + 1) x 10 ** r. For the first element, the sum over 4 ranks is
    1111; 1011 lacks rank 2, and 1121 has rank 1 twice.

    Args:
        rank: This rank, 0 to 6.
        num_elements: Number of elements, B.

    Returns:
        torch.Tensor: (B,) float32, of whole numbers.

    Raises:
        BadInput: The rank is not 0 to 6, of which sums are exact.

    Lesson: 02_collectives, 03_ring.
    """
    _check_tally("rank", rank, MAX_TALLY_RANKS - 1)
    return (torch.arange(num_elements) % 9 + 1).float() * 10**rank


def tally_of(world_size: int, num_elements: int = 1) -> torch.Tensor:
    """
    Return the right sum of `tally` over all ranks, (B,) float32.

    Args:
        world_size: Number of ranks, 0 to 7.
        num_elements: Number of elements, B.

    Raises:
        BadInput: There are more ranks than digits.
    """
    _check_tally("world size", world_size, MAX_TALLY_RANKS)
    return (torch.arange(num_elements) % 9 + 1).float() * sum(10**r for r in range(world_size))


def _check_tally(name, value, largest):
    if not 0 <= value <= largest:
        raise BadInput(
            f"Bad {name}: expected 0 to {largest}, a decimal digit for each rank (got {value}). "
            "Use whole_numbers for more."
        )


def whole_numbers(shape: Sequence[int], seed: int = 0, rank: int = 0) -> torch.Tensor:
    """
    Draw whole numbers from -8 to 8 that differ between ranks.

    Args:
        shape: Shape of the tensor.
        seed: The same on every rank.
        rank: This rank.

    Returns:
        torch.Tensor: float32. Sums over up to 2 ** 21 ranks are exact.

    Lesson: 02_collectives, 03_ring.
    """
    generator = rank_generator(seed, rank)
    return torch.randint(-_LARGEST, _LARGEST + 1, shape, generator=generator).float()


@dataclass(frozen=True)
class LinearToy:
    """
    A linear regression in whole numbers that has a solution, and whose gradients are whole.

    Args:
        inputs: (N, F) float32, whole numbers from -8 to 8.
        targets: (N, 1) float32: `inputs` times the solution.
        solution: (1, F) float32, whole numbers from -8 to 8, as the weight of a Linear.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    solution: torch.Tensor

    def model(self, seed: int = 0) -> nn.Linear:
        """
        Make a Linear without bias, (N, F) -> (N, 1), whose first weights are whole numbers.

        Args:
            seed: Two models of one seed are equal, and no first weight is the solution's.
        """
        num_features = self.inputs.shape[1]
        with seeded(seed):
            model = nn.Linear(num_features, 1, bias=False)
        distance = torch.randint(1, 4, (1, num_features), generator=rank_generator(seed)).float()
        with torch.no_grad():
            model.weight.copy_(self.solution + distance)
        return model

    def shard(self, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return the inputs and targets of one rank: every world_size-th sample. Sizes may differ.
        """
        return self.inputs[rank::world_size], self.targets[rank::world_size]

    def gradient(self, weight: torch.Tensor) -> torch.Tensor:
        """
        Return the gradient of `half_squares` at a weight over all samples, (1, F).

        It is computed in integers, without autograd: what any number of ranks must add up to.

        Args:
            weight: (1, F), whole numbers.
        """
        inputs, targets = self.inputs.long(), self.targets.long()
        errors = inputs @ weight.detach().cpu().long().T - targets  # (N, F) (F, 1) -> (N, 1)
        return (errors.T @ inputs).float()


def linear_toy(num_samples: int = 16, num_features: int = 4, seed: int = 0) -> LinearToy:
    """
    Make a LinearToy.

    Args:
        num_samples: N; a number that the ranks do not divide makes shards unequal.
        num_features: F.
        seed: The same on every rank: the toy is whole, and `shard` divides it.

    Returns:
        LinearToy: Gradients of `half_squares` at the first weights are at most 192 N F in size, so
        exact while N F is below 87,000.

    Lesson: 05_replicas, 07_accumulation.
    """
    inputs = whole_numbers((num_samples, num_features), seed, rank=0)
    solution = whole_numbers((1, num_features), seed, rank=1)
    return LinearToy(inputs, inputs @ solution.T, solution)


def half_squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """
    Return half the sum of squared differences: its gradients have no fraction.

    A sum, not a mean: shards of any size add up to the gradient of the whole. Divide by the number
    of samples to get the mean.

    Args:
        outputs: Any shape.
        targets: The same shape.
    """
    return (outputs - targets).square().sum() / 2
