"""
The median of all values: no sum, no maximum of ranks' own numbers gives it.

Shapes: rank r holds n_r values, N over all ranks. The median is the value at place (N - 1) // 2 of
them all in order: of two in the middle the lower one, as torch.median has it.

    gathered      sends every value: N numbers come to each rank
    by counting   asks "how many are at most x?", one number an all-reduce, and halves what is left
"""

import math
import struct

import torch
import torch.distributed as dist

from .arguments import device_of, need_samples


def gathered_median(values: torch.Tensor, group: dist.ProcessGroup | None = None) -> float:
    """
    Return the median of the values of all ranks, after gathering them all.

    Collective: every rank must call it, also one without values.

    Args:
        values: (n_r,) of any dtype; float64 holds each exactly, but int64 beyond 2**53.
        group: The process group, or None for the default group.

    Returns:
        float: The same on every rank; nan if a value is.

    Raises:
        BadInput: No rank has a value.

    Lesson: 12_metrics.
    """
    device = device_of(group)
    values = values.detach().double().flatten().to(device)
    length = torch.tensor([len(values)], device=device)
    lengths = [torch.empty_like(length) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, length, group=group)
    counts: list = [one.item() for one in lengths]
    need_samples(sum(counts), group)
    padded = values.new_zeros(max(counts))  # all_gather wants equal lengths
    padded[: len(values)] = values
    everyone = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(everyone, padded, group=group)
    return torch.cat([one[:n] for one, n in zip(everyone, counts, strict=True)]).median().item()


def whole_median(
    values: torch.Tensor, lowest: int, highest: int, group: dist.ProcessGroup | None = None
) -> int:
    """
    Return the median of whole numbers by counting alone, in log2(highest - lowest + 1) questions.

    Collective: every rank must call it, also one without values.

    Args:
        values: (n_r,) whole numbers of this rank.
        lowest: None of any rank is below; the same on every rank.
        highest: None is above.
        group: The process group, or None for the default group.

    Returns:
        int: The same on every rank.

    Raises:
        BadInput: No rank has a value.

    Lesson: 12_metrics.
    """
    values = values.detach().long().flatten()
    (total,) = _sums([values.numel()], group)
    need_samples(total, group)
    return _at_place((total - 1) // 2, values, lowest, highest, group)


def median_by_counting(values: torch.Tensor, group: dist.ProcessGroup | None = None) -> float:
    """
    Return the median of floating-point values by counting alone: at most 65 small all-reduces.

    A float64 is 64 bits, and sorted by its bits, as a whole number, it is sorted by its value. So
    the median is halved in on, exactly.

    Collective: every rank must call it, also one without values.

    Args:
        values: (n_r,) of this rank.
        group: The process group, or None for the default group.

    Returns:
        float: The same on every rank; nan if a value is.

    Raises:
        BadInput: No rank has a value.

    Lesson: 12_metrics.
    """
    values = values.detach().double().flatten() + 0.0  # one zero: -0.0 + 0.0 is 0.0
    total, num_nan = _sums([values.numel(), values.isnan().sum().item()], group)
    need_samples(total, group)
    if num_nan:
        return math.nan
    bits = values.view(torch.int64)
    # Below zero a float's bits rise as it falls: turn all but the sign.
    keys = torch.where(bits < 0, bits ^ torch.iinfo(torch.int64).max, bits)
    most = 2**63 - 1
    key = _at_place((total - 1) // 2, keys, -most - 1, most, group)
    return struct.unpack("<d", struct.pack("<q", key ^ most if key < 0 else key))[0]


def _at_place(place, values, lowest, highest, group):
    # The smallest x such that more than `place` values are at most x.
    while lowest < highest:
        middle = (lowest + highest) // 2  # whole numbers of Python do not overflow
        (num_up_to,) = _sums([(values <= middle).sum().item()], group)
        if num_up_to > place:
            highest = middle
        else:
            lowest = middle + 1
    return lowest


def _sums(counts, group):
    sums = torch.tensor(counts, dtype=torch.int64, device=device_of(group))
    dist.all_reduce(sums, group=group)
    return sums.tolist()
