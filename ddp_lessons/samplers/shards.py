"""
Divide an epoch's order between ranks, as torch's DistributedSampler does.

Shapes: N samples in a data set, w ranks; a shard is a list of ceil(N / w) indices from 0 to N - 1,
or of floor(N / w) when the tail is dropped.

    order       3 1 4 0 2          every rank shuffles alike: the seed is the same
    padded      3 1 4 0 2 | 3      so that 2 ranks get equally many, one sample comes twice
    rank 0      3   4   2
    rank 1        1   0   3*       * a repeat
"""

import itertools
from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from ..errors import BadInput


def epoch_order(num_samples: int, shuffle: bool = True, seed: int = 0, epoch: int = 0) -> list[int]:
    """
    Return the order in which all ranks together go through a data set in one epoch.

    It depends on the arguments alone, so every rank computes the same order without a message.
    The global random state is left as it was.

    Args:
        num_samples: Number of samples, N.
        shuffle: Whether to shuffle; otherwise the order is 0, 1, 2 and so on.
        seed: The same on every rank.
        epoch: Number of the epoch. Epochs e of seed s and e - 1 of seed s + 1 are alike.

    Returns:
        list of int: N indices, each once.

    Source: torch documentation, `torch.utils.data.distributed.DistributedSampler`. Lesson:
    04_samplers.
    """
    if not shuffle:
        return list(range(num_samples))
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    return torch.randperm(num_samples, generator=generator).tolist()


def shard_length(num_samples: int, world_size: int, drop_last: bool = False) -> int:
    """
    Return how many samples each rank gets: N / w, rounded up, or down when the tail is dropped.
    """
    return num_samples // world_size if drop_last else -(-num_samples // world_size)


def shard_indices(
    num_samples: int,
    rank: int,
    world_size: int,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
    start: int = 0,
) -> list[int]:
    """
    Return the samples of one rank, in the order in which it sees them.

    Ranks take turns in the epoch's order. When the ranks cannot share it evenly, its beginning is
    repeated at the end, or with `drop_last` its tail is left out.

    Args:
        num_samples: Number of samples, N.
        rank: This rank, r.
        world_size: Number of ranks, w.
        shuffle: Whether to shuffle.
        seed: The same on every rank.
        epoch: Number of the epoch.
        drop_last: Leave the tail out instead of repeating the beginning.
        start: How many places of the epoch's order were seen before; the rest is shared.

    Returns:
        list of int: Equally many on all ranks; equal to torch's, index for index, if `start` is 0.

    Source: torch documentation, `torch.utils.data.distributed.DistributedSampler`. Lesson:
    04_samplers.
    """
    order = epoch_order(num_samples, shuffle, seed, epoch)
    rest = order[start:]
    num_shared = shard_length(len(rest), world_size, drop_last) * world_size
    # With fewer samples than ranks the beginning is repeated more than once.
    shared = itertools.islice(itertools.chain(rest, itertools.cycle(order)), num_shared)
    return list(itertools.islice(shared, rank, None, world_size))


def shard_repeats(
    num_samples: int, rank: int, world_size: int, drop_last: bool = False, start: int = 0
) -> list[bool]:
    """
    Tell which places of a shard are padding: a sample that this or another rank has seen before.

    Args:
        num_samples: Number of samples, N.
        rank: This rank, r.
        world_size: Number of ranks, w.
        drop_last: Whether the tail is left out; then nothing is repeated.
        start: How many places of the epoch's order were seen before.

    Returns:
        list of bool: As long as the shard of `shard_indices`. Over all ranks, the places that are
        False hold every sample that is left, once.

    Lesson: 04_samplers.
    """
    num_left = max(0, num_samples - start)
    length = shard_length(num_left, world_size, drop_last)
    return [rank + turn * world_size >= num_left for turn in range(length)]


def find_place(
    rank: int | None, world_size: int | None, group: dist.ProcessGroup | None
) -> tuple[int, int]:
    """
    Return (rank, world_size): those given, or those of the group.

    Raises:
        BadInput: There is no group to ask, or the rank is not in the world.
    """
    if (rank is None or world_size is None) and not dist.is_initialized():
        raise BadInput(
            f"No process group: a rank and a world size are needed (got {rank} and {world_size}). "
            "Join a group, or pass both."
        )
    rank = dist.get_rank(group) if rank is None else rank
    world_size = dist.get_world_size(group) if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise BadInput(
            f"Bad rank: expected 0 to {world_size - 1} (got {rank}, world size {world_size}). "
            "Count ranks from 0."
        )
    return rank, world_size


class ShardSampler(Sampler[int]):
    """
    Give a DataLoader this rank's share of a data set, padded so that all ranks get equally many.

    A sampler changes nothing by itself: the DataLoader must get it as `sampler=`.

    Args:
        dataset: Anything with a length, N.
        shuffle: Whether to shuffle, anew in every epoch that `set_epoch` announces.
        seed: The same on every rank.
        drop_last: Leave the tail out instead of repeating the beginning.
        rank: This rank; None asks the group.
        world_size: Number of ranks; None asks the group.
        group: The process group, or None for the default group.

    Raises:
        BadInput: There is no group to ask, or the rank is not in the world.

    Source: torch documentation, `torch.utils.data.distributed.DistributedSampler`. Lesson:
    04_samplers.
    """

    _start = 0  # how many places of the epoch's order were seen before: none

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.world_size = find_place(rank, world_size, group)
        self.num_samples = len(dataset)
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """
        Make the next pass the one of this epoch. Without it every epoch has the same order.

        Args:
            epoch: The same on every rank.
        """
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(
            shard_indices(
                self.num_samples,
                self.rank,
                self.world_size,
                self.shuffle,
                self.seed,
                self.epoch,
                self.drop_last,
                self._start,
            )
        )

    def __len__(self) -> int:
        num_left = max(0, self.num_samples - self._start)
        return shard_length(num_left, self.world_size, self.drop_last)

    @property
    def repeats(self) -> list[bool]:
        """
        Which places of this rank's shard are padding, as `shard_repeats` tells.
        """
        return shard_repeats(
            self.num_samples, self.rank, self.world_size, self.drop_last, self._start
        )
