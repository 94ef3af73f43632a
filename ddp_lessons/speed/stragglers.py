"""
Find the rank that holds all others back.

Legend: rank r of w; own_s is what a rank computed in each step, waiting_s how long it waited for
others. In synchronous training all steps are as long as the slowest rank's, on every rank: the time
of a step cannot tell who it is. Who computes longest can, and who waits least: it is the same rank.
"""

from collections.abc import Iterable, Sequence
from statistics import median

import torch
import torch.distributed as dist

from ..errors import BadInput

LEAST_SHARE = 0.25
"""
How much longer than any other a straggler computes, as a share of the other's time.
"""


def who_waits_least(waiting_s: Iterable[Iterable[float]]) -> int:
    """
    Return the rank that the others wait for.

    Args:
        waiting_s: For each rank the seconds that it waited in each step.

    Lesson: 11_speed.
    """
    medians_s = [median(own_s) for own_s in waiting_s]
    return medians_s.index(min(medians_s))


def find_straggler(
    own_s: Sequence[Sequence[float]], num_warm_up: int = 1, least_share: float = LEAST_SHARE
) -> int | None:
    """
    Return the rank that computes clearly longer than any other in most steps, or None.

    A pause that hits one step moves a mean; the median stays.

    Args:
        own_s: For each rank the seconds that it computed in each step, without waiting.
        num_warm_up: How many of the first steps do not count.
        least_share: How much longer is clear, as a share of the next rank's time.

    Returns:
        int: The rank, or None if no rank stands out; None for one rank alone.

    Raises:
        BadInput: A rank has no step beyond the warm-up.

    Lesson: 11_speed.
    """
    if not all(own[num_warm_up:] for own in own_s):
        raise BadInput(
            f"Too few steps: expected more than {num_warm_up} of each rank (got "
            f"{[len(own) for own in own_s]}). Record more."
        )
    return _stands_out([median(own[num_warm_up:]) for own in own_s], least_share)


def agree_on_straggler(
    own_s: Sequence[float],
    num_warm_up: int = 1,
    least_share: float = LEAST_SHARE,
    group: dist.ProcessGroup | None = None,
) -> int | None:
    """
    Find the straggler together: each rank knows its own steps, and all learn the same.

    Collective: every rank must call it.

    Args:
        own_s: Seconds that this rank computed in each step.
        num_warm_up: As for `find_straggler`.
        least_share: As for `find_straggler`.
        group: The process group, or None for the default group.

    Returns:
        int: As for `find_straggler`, the same on every rank.

    Source: torch.distributed documentation, `all_gather`. Lesson: 11_speed.
    """
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    own = torch.tensor([median(own_s[num_warm_up:])], dtype=torch.float64, device=device)
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, own, group=group)
    return _stands_out([one.item() for one in everyone], least_share)


def _stands_out(medians_s, least_share):
    if len(medians_s) < 2:
        return None
    *_, second_s, first_s = sorted(medians_s)
    return medians_s.index(first_s) if first_s > (1 + least_share) * second_s else None
