"""
Every collective round a hub: one rank talks to all others, one after the other.

Legend: n numbers in a tensor, B bytes in it, rank r of w. `flat` is (n,); `parts` are w of them.
The hub sends or receives (w - 1) B bytes in w - 1 messages, so time grows with the number of ranks.
`rounds` has the same functions with fewer steps; `calls` says what each one means.

Nothing here can deadlock: a send waits only for a rank whose next step is to receive it.

Lesson: 02_collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .reductions import combine, finish

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.distributed as dist

    from .messages import Peers

HUB = 0
"""
Rank in the group that collectives without a root go through.
"""


def broadcast(flat: torch.Tensor, src: int, peers: Peers) -> None:
    """
    Send `flat` of `src` to each rank in turn.
    """
    if peers.rank == src:
        for other in _others(src, peers):
            peers.send(flat, other)
    else:
        peers.receive(flat, src)


def scatter(
    flat: torch.Tensor, parts: Sequence[torch.Tensor] | torch.Tensor, src: int, peers: Peers
) -> None:
    """
    Send part r of `src` to rank r, each in turn.
    """
    if peers.rank == src:
        flat.copy_(parts[src])
        for other in _others(src, peers):
            peers.send(parts[other], other)
    else:
        peers.receive(flat, src)


def gather(flat: torch.Tensor, parts: Sequence[torch.Tensor], dst: int, peers: Peers) -> None:
    """
    Receive part r of `dst` from rank r, each in turn.
    """
    if peers.rank == dst:
        parts[dst].copy_(flat)
        for other in _others(dst, peers):
            peers.receive(parts[other], other)
    else:
        peers.send(flat, dst)


def reduce(flat: torch.Tensor, dst: int, op: dist.ReduceOp.RedOpType, peers: Peers) -> None:
    """
    Receive every rank's numbers on `dst` and put them together there.
    """
    if peers.rank == dst:
        arrived = torch.empty_like(flat)
        for other in _others(dst, peers):
            peers.receive(arrived, other)
            combine(op, flat, arrived, out=flat)
        finish(op, flat, peers.world_size)
    else:
        peers.send(flat, dst)


def all_reduce(flat: torch.Tensor, op: dist.ReduceOp.RedOpType, peers: Peers) -> None:
    """
    Put all numbers together at the hub, and send them out again.
    """
    reduce(flat, HUB, op, peers)
    broadcast(flat, HUB, peers)


def all_gather(flat: torch.Tensor, parts: Sequence[torch.Tensor], peers: Peers) -> None:
    """
    Collect all parts at the hub, and send them out again. Parts may differ in length.
    """
    everything = flat.new_empty(sum(part.numel() for part in parts))
    places = everything.split([part.numel() for part in parts])  # w views
    gather(flat, places, HUB, peers)
    broadcast(everything, HUB, peers)
    for part, place in zip(parts, places, strict=True):
        part.copy_(place)


def reduce_scatter(
    flat: torch.Tensor,
    parts: list[torch.Tensor] | tuple[torch.Tensor, ...],
    op: dist.ReduceOp.RedOpType,
    peers: Peers,
) -> None:
    """
    Put all numbers together at the hub, and send each rank its part.
    """
    everything = torch.cat(parts)  # (w n,)
    reduce(everything, HUB, op, peers)
    scatter(flat, everything.view(peers.world_size, flat.numel()), HUB, peers)


def all_to_all(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    counts: Sequence[Sequence[int]],
    peers: Peers,
) -> None:
    """
    Let each rank in turn be the hub of a scatter. `counts` is of use to `rounds` only.
    """
    for source, output in enumerate(outputs):
        scatter(output, inputs, source, peers)


def barrier(token: torch.Tensor, peers: Peers) -> None:
    """
    Tell the hub that this rank is here, and wait until the hub has heard it of all.
    """
    for other in _others(HUB, peers):
        if peers.rank == HUB:
            peers.receive(token, other)
        elif peers.rank == other:
            peers.send(token, HUB)
    broadcast(token, HUB, peers)


def _others(rank, peers):
    return [other for other in range(peers.world_size) if other != rank]
