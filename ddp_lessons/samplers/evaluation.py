"""
Count every sample once over all ranks, and add the counts up.

Shapes: N samples, w ranks; rank r evaluates the samples r, r + w, r + 2w and so on: shards differ
by one sample at most, and a rank may have none.
"""

from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from ..errors import BadInput
from ..whole import whole_number
from .shards import find_place


class ExactSampler(Sampler[int]):
    """
    Give a DataLoader this rank's share of a data set for evaluation, without any repeat.

    Ranks may get different numbers of batches, and a rank may get none. So the loop that it feeds
    must not call a collective: evaluate the module inside a DDP model, and add counts up afterwards
    with `exact_accuracy`.

    Args:
        dataset: Anything with a length, N.
        rank: This rank; None asks the group.
        world_size: Number of ranks; None asks the group.
        group: The process group, or None for the default group.

    Raises:
        BadInput: There is no group to ask, or the rank is not in the world.

    Lesson: 04_samplers.
    """

    def __init__(
        self,
        dataset: Sized,
        rank: int | None = None,
        world_size: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        rank, world_size = find_place(rank, world_size, group)
        self.indices = range(rank, len(dataset), world_size)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def sum_counts(*counts: int | torch.Tensor, group: dist.ProcessGroup | None = None) -> list[int]:
    """
    Add whole numbers up over all ranks, exactly, with one all-reduce of int64.

    Collective: every rank must call it with equally many counts.

    Args:
        counts: Whole numbers, or tensors that hold one each, on any device.
        group: The process group, or None for the default group.

    Returns:
        list of int: The sums, the same on every rank.

    Raises:
        BadInput: A count is no whole number. A float32 cannot count beyond 2**24.

    Source: torch.distributed documentation, `all_reduce`. Lesson: 04_samplers.
    """
    for count in counts:
        if whole_number(count) is None:
            kind = count.dtype if isinstance(count, torch.Tensor) else type(count).__name__
            raise BadInput(
                f"Not a count: expected one whole number (got {kind}, rank {dist.get_rank(group)} "
                f"of {dist.get_world_size(group)}). Sum the right answers, do not average them."
            )
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    totals = torch.tensor([int(count) for count in counts], dtype=torch.int64, device=device)
    dist.all_reduce(totals, group=group)
    return totals.tolist()


def exact_accuracy(
    num_correct: int | torch.Tensor,
    num_seen: int | torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> float:
    """
    Return the share of samples that all ranks together got right, from 0 to 1.

    Adding up before dividing weighs every sample alike. The mean of the ranks' own accuracies does
    not when shards differ in length, and is undefined when one is empty.

    Collective: every rank must call it, also one without samples.

    Args:
        num_correct: How many of this rank's samples were right.
        num_seen: How many samples this rank evaluated; may be 0.
        group: The process group, or None for the default group.

    Returns:
        float: The same on every rank.

    Raises:
        BadInput: A count is no whole number, or no rank has seen a sample.

    Lesson: 04_samplers.
    """
    num_correct_global, num_seen_global = sum_counts(num_correct, num_seen, group=group)
    if num_seen_global == 0:
        raise BadInput(
            "Nothing to evaluate: expected at least one sample over all ranks (got 0, rank "
            f"{dist.get_rank(group)} of {dist.get_world_size(group)}). Look at the data set."
        )
    return num_correct_global / num_seen_global
