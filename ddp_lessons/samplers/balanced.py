"""
Give fast ranks more samples, and all ranks the same number of steps.

Shapes: N samples, w ranks; rank r has a share of n_r samples, n_0 + ... + n_(w-1) = N, cut into as
many batches as any other rank's. A step waits for the slowest rank, so shares go by speed.
"""

import itertools
import math
from collections.abc import Iterator, Sequence, Sized
from fractions import Fraction

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from ..errors import BadInput
from .shards import epoch_order, find_place


def balanced_shares(num_samples: int, samples_per_s: Sequence[float]) -> list[int]:
    """
    Divide samples between ranks in proportion to their speeds, rounded by largest remainders.

    Each share is the exact proportion rounded down or up, and they add up to `num_samples`. Equal
    remainders go to the lower rank. The arithmetic is exact, so all ranks get the same shares.

    Args:
        num_samples: Number of samples, N.
        samples_per_s: The speed of each rank; w numbers above 0.

    Returns:
        list of int: The share of each rank, n_r.

    Raises:
        BadInput: A speed is not a number above 0, or there is none.

    Lesson: 04_samplers.
    """
    if not samples_per_s or not all(math.isfinite(s) and s > 0 for s in samples_per_s):
        raise BadInput(
            "Bad speeds: expected a number above 0 for each rank (got "
            f"{', '.join(f'{s:g}' for s in samples_per_s) or 'none'}). Measure samples per second."
        )
    speeds = [Fraction(s) for s in samples_per_s]
    exact = [num_samples * s / sum(speeds) for s in speeds]
    shares = [math.floor(e) for e in exact]
    by_remainder = sorted(range(len(exact)), key=lambda r: (shares[r] - exact[r], r))
    for rank in by_remainder[: num_samples - sum(shares)]:
        shares[rank] += 1
    return shares


def gather_throughputs(
    samples_per_s_local: float, group: dist.ProcessGroup | None = None
) -> list[float]:
    """
    Tell every rank how fast each rank is, so that all compute the same shares.

    Collective: every rank must call it.

    Args:
        samples_per_s_local: Samples per second that this rank measured, without waiting for others.
        group: The process group, or None for the default group.

    Returns:
        list of float: Samples per second by rank, the same numbers on every rank.

    Source: torch.distributed documentation, `all_gather`. Lesson: 04_samplers.
    """
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    own = torch.tensor([samples_per_s_local], dtype=torch.float64, device=device)
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, own, group=group)
    return [speed.item() for speed in everyone]


class BalancedBatchSampler(Sampler[list[int]]):
    """
    Give a DataLoader batches whose sizes follow the ranks' speeds; each sample once per epoch.

    All ranks have the same number of steps, as DDP needs, and no batch is empty. A rank's batches
    differ by one sample at most. Ranks' batches differ in size, so gradients must be weighed by
    samples: see `ddp_lessons.accumulation`. Pass it as `batch_sampler=`.

    Args:
        dataset: Anything with a length, N.
        batch_size_global: Samples of a step over all ranks, about: N is cut into
            ceil(N / batch_size_global) steps.
        samples_per_s: The speed of each rank, the same list on every rank: see
            `gather_throughputs`.
        shuffle: Whether to shuffle, anew in every epoch that `set_epoch` announces.
        seed: The same on every rank.
        rank: This rank; None asks the group.
        world_size: Number of ranks; None asks the group.
        group: The process group, or None for the default group.

    Raises:
        BadInput: A speed is not above 0, there are not as many as ranks, or a rank is so slow that
            it would have fewer samples than steps.

    Lesson: 04_samplers, 14_asynchronous.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size_global: int,
        samples_per_s: Sequence[float],
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.world_size = find_place(rank, world_size, group)
        self.num_samples = len(dataset)
        self.shuffle, self.seed = shuffle, seed
        self.epoch = 0
        if batch_size_global < 1:
            raise BadInput(
                f"Bad batch size: expected 1 or more (got {batch_size_global}, rank {self.rank} of "
                f"{self.world_size}). Count the samples of a step over all ranks."
            )
        self.num_steps = -(-self.num_samples // batch_size_global)
        self.set_throughputs(samples_per_s)

    def set_throughputs(self, samples_per_s: Sequence[float]) -> None:
        """
        Share anew, from the next pass on. Call it on every rank with the same speeds.

        Args:
            samples_per_s: The speed of each rank; w numbers above 0.

        Raises:
            BadInput: As for the class; the shares stay as they were.
        """
        if len(samples_per_s) != self.world_size:
            raise BadInput(
                f"Bad speeds: expected one for each rank (got {len(samples_per_s)}, rank "
                f"{self.rank} of {self.world_size}). Gather them with gather_throughputs."
            )
        shares = balanced_shares(self.num_samples, samples_per_s)
        if min(shares) < self.num_steps:
            slowest = shares.index(min(shares))
            raise BadInput(
                f"Too slow a rank: expected at least {self.num_steps} samples, one a step (got "
                f"{shares[slowest]}, rank {slowest} of {self.world_size}). Make the global batch "
                "larger, or leave this rank out."
            )
        self.shares = shares

    def set_epoch(self, epoch: int) -> None:
        """
        Make the next pass the one of this epoch. Without it every epoch has the same order.

        Args:
            epoch: The same on every rank.
        """
        self.epoch = epoch

    def batch_sizes(self) -> list[int]:
        """
        Return the sizes of this rank's batches, one for each step.
        """
        small, num_larger = divmod(self.shares[self.rank], max(1, self.num_steps))
        return [small + (step < num_larger) for step in range(self.num_steps)]

    def __iter__(self) -> Iterator[list[int]]:
        order = epoch_order(self.num_samples, self.shuffle, self.seed, self.epoch)
        begin = sum(self.shares[: self.rank])
        mine = iter(order[begin : begin + self.shares[self.rank]])
        for size in self.batch_sizes():
            yield list(itertools.islice(mine, size))

    def __len__(self) -> int:
        return self.num_steps
