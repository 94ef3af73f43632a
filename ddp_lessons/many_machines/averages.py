"""
Average gradients over ranks of several hosts: the flat ring, and five remedies.

Legend: w ranks on h hosts of g; a gradient is flat (n,), of B bytes.

    flat           a ring through all ranks          2 (w - 1) messages of B / w leave each host
    hierarchical   add up within hosts, then across  2 (h - 1) messages of B / h
    half           a flat ring of half precision     2 (w - 1) of B / 2w
    top-k          all get each rank's largest       w - 1, of the bytes that are left
    accumulate     flat, after every 4th batch
    local SGD      flat, of weights, after every 8th step
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ..errors import BadInput
from ..ring import steps
from .foretelling import EVERY, SHARE

if TYPE_CHECKING:
    from .roads import Road

SUM = dist.ReduceOp.SUM


def flat(gradient: torch.Tensor, road: "Road") -> None:
    """
    Average as a ring through all ranks does, whatever host they are on: DDP's way on Gloo.

    Collective: every rank must call it.

    Args:
        gradient: (n,), changed in place.
        road: A Road.

    Lesson: 17_many_machines.
    """
    steps.all_reduce(gradient, SUM, road.everyone)
    gradient.div_(road.everyone.world_size)


def hierarchical(gradient: torch.Tensor, road: "Road") -> None:
    """
    Average within hosts first: a host's sum crosses once, in as many parts as it has ranks.

    Reduce-scatter within the host: rank i of it has the host's sum of part i. All-reduce of part i
    among twins: it has the sum of all. All-gather within the host.

    Collective: every rank must call it.

    Args:
        gradient: (n,), changed in place. All ranks get the same bits.
        road: A Road whose hosts have equally many ranks.

    Raises:
        BadInput: Hosts have unequally many ranks.

    Source: Y. Ueno, R. Yokota, "Exhaustive Study of Hierarchical AllReduce Patterns for Large
    Messages Between GPUs", CCGrid 2019; torch's HSDP does it, too. Lesson: 17_many_machines.
    """
    if road.twins is None:
        counts = [len(ranks) for ranks in road.hosts.layout]
        raise BadInput(
            f"Uneven hosts: expected equally many ranks on each (got {counts}). Use "
            "leaders_all_reduce, by which one rank of a host speaks for it."
        )
    parts = list(gradient.tensor_split(road.local.world_size))  # g views
    steps.reduce_scatter_chunks(parts, SUM, road.local)
    steps.all_reduce(parts[road.local.rank], SUM, road.twins)
    steps.all_gather_chunks(parts, road.local)
    gradient.div_(road.everyone.world_size)


def half(gradient: torch.Tensor, road: "Road") -> None:
    """
    Average in half precision: half the bytes. Rounding is the price.

    Divided first: a sum of float16 beyond 65,504 would be infinite.

    Collective: every rank must call it.

    Args:
        gradient: (n,), changed in place.
        road: A Road.

    Lesson: 17_many_machines; with error feedback in 06_ddp.
    """
    message = (gradient / road.everyone.world_size).half()
    steps.all_reduce(message, SUM, road.everyone)
    gradient.copy_(message)


class TopK:
    """
    Average only what is largest on each rank, and keep the rest for the next time.

    Args:
        share: Which share of the numbers is sent: more than 0, at most 1.

    Source: Y. Lin et al., "Deep Gradient Compression", ICLR 2018. Lesson: 17_many_machines; as a
    hook of DDP in 06_ddp.
    """

    _kept: torch.Tensor | None

    def __init__(self, share: float = SHARE) -> None:
        if not 0 < share <= 1:
            raise BadInput(
                f"Bad share: expected more than 0 and at most 1 (got {share}). Give the share of "
                "numbers to send."
            )
        self.share, self._kept = share, None

    def __call__(self, gradient: torch.Tensor, road: "Road") -> None:
        """
        Average a gradient.

        Collective: every rank must call it.

        Args:
            gradient: (n,) of float32, changed in place: 0 where no rank has sent anything.
            road: A Road.
        """
        owed = gradient if self._kept is None else gradient + self._kept
        positions = owed.abs().topk(math.ceil(self.share * len(owed)), sorted=False).indices
        values = owed[positions]
        self._kept = owed.index_fill(0, positions, 0)
        # One message: positions, and the bits of the values beside them.
        own = torch.cat([positions.to(torch.int32), values.view(torch.int32)])
        all_ranks = [torch.empty_like(own) for _ in range(road.everyone.world_size)]
        steps.all_gather(own, all_ranks, road.everyone)
        gradient.zero_()
        for message in all_ranks:  # in rank order, or ranks would round differently
            at, bits = message.chunk(2)
            gradient.index_add_(0, at, bits.view(torch.float32))
        gradient.div_(road.everyone.world_size)


WAYS: dict[str, Callable[[], Callable[[torch.Tensor, "Road"], None]]] = {
    "flat": lambda: flat,
    "hierarchical": lambda: hierarchical,
    "half": lambda: half,
    "top-k": TopK,
    "accumulate": lambda: flat,
    "local SGD": lambda: flat,
}
"""
For each name a function that makes a function (gradient, road).
"""


def make_way(name: str) -> tuple[Callable[[torch.Tensor, "Road"], None], int]:
    """
    Return a way to average by its name, and after how many batches it is called.

    Args:
        name: One of WAYS.

    Raises:
        BadInput: There is no such way.
    """
    if name not in WAYS:
        raise BadInput(
            f"No such way: expected one of {', '.join(WAYS)} (got {name!r}). Name one of them."
        )
    return WAYS[name](), EVERY.get(name, 1)


def hierarchical_hook(road: "Road", bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """
    Let DDP average within hosts first: `model.register_comm_hook(road, hierarchical_hook)`.

    Collective: every rank must call it. DDP does.

    Args:
        road: A Road.
        bucket: torch's GradBucket, (n,).

    Returns:
        torch.futures.Future: Of the averaged bucket.

    Source: torch documentation, "DDP Communication Hooks". Lesson: 17_many_machines.
    """
    hierarchical(bucket.buffer(), road)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
