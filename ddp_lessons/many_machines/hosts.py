"""
Which rank is on which host, and the groups that follow from it.

Legend: w ranks on h hosts. A layout has for each host its ranks, such as ((0, 1), (2, 3)). The
first rank of a host is its **leader**. Ranks at the same place of their hosts are **twins**: 0 and
2, 1 and 3. Only where all hosts have equally many ranks does everybody have a twin on each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from ..errors import BadInput
from ..process_group import split_by_name


def even_layout(num_hosts: int, ranks_per_host: int) -> tuple[tuple[int, ...], ...]:
    """
    Return the layout that torchrun makes: each host has its ranks in a row.

    Args:
        num_hosts: How many hosts, at least 1.
        ranks_per_host: How many ranks each has, at least 1.

    Raises:
        BadInput: A number is below 1.

    Lesson: 17_many_machines.
    """
    if num_hosts < 1 or ranks_per_host < 1:
        raise BadInput(
            f"No ranks: expected 1 host and 1 rank or more (got {num_hosts} hosts of "
            f"{ranks_per_host}). Pass other numbers."
        )
    firsts = range(0, num_hosts * ranks_per_host, ranks_per_host)
    return tuple(tuple(range(first, first + ranks_per_host)) for first in firsts)


def host_of(layout: Sequence[Sequence[int]], rank: int) -> int:
    """
    Return the number of the host that a rank is on.

    Raises:
        BadInput: It is on none.
    """
    for host, ranks in enumerate(layout):
        if rank in ranks:
            return host
    raise BadInput(
        f"A rank without a host: expected one of {[list(ranks) for ranks in layout]} (got {rank}). "
        "Name every rank in the layout."
    )


@dataclass(frozen=True)
class Hosts:
    """
    Hold a layout, and the groups of it that this rank is in.

    Args:
        layout: For each host its ranks.
        local: The group of the ranks on this rank's host.
        leaders: The group of all leaders, on a leader; None on other ranks.
        twins: The group of this rank's twins, itself included; None if hosts have unequally many
            ranks.
    """

    layout: tuple[tuple[int, ...], ...]
    local: dist.ProcessGroup
    leaders: dist.ProcessGroup | None
    twins: dist.ProcessGroup | None

    @property
    def leader(self) -> int:
        """
        The leader of this rank's host, as a rank of the default group.
        """
        return self.layout[host_of(self.layout, dist.get_rank())][0]


def split_hosts(layout: Sequence[Sequence[int]]) -> Hosts:
    """
    Make the groups of a layout, once for all calls.

    Collective: every rank of the default group must call it, with the same layout.

    Args:
        layout: For each host its ranks; every rank of the default group is in one.

    Raises:
        BadInput: A host has no rank, or a rank is on no host or on two.

    Source: torch.distributed documentation, "Groups". Lesson: 17_many_machines.
    """
    layout = tuple(tuple(ranks) for ranks in layout)
    for rank in range(dist.get_world_size()):
        host_of(layout, rank)
    local = split_by_name({f"host-{host}": ranks for host, ranks in enumerate(layout)})
    leaders = split_by_name({"leaders": [ranks[0] for ranks in layout]})
    twins = None
    if len({len(ranks) for ranks in layout}) == 1:
        places = zip(*layout, strict=True)
        twins = split_by_name({f"twins-{place}": ranks for place, ranks in enumerate(places)})
    return Hosts(layout, local, leaders, twins)  # type: ignore[arg-type]  # tuples by now
