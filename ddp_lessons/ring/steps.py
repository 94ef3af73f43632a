"""
The ring as the papers have it: in each step every rank sends one chunk ahead and receives one.

Legend: rank r of w; `flat` is (n,), cut into w `chunks` whose lengths differ by one at most. All
sends go to rank r + 1 and all receives come from rank r - 1, round the ring.

    all-reduce = reduce-scatter, w - 1 steps: a chunk grows by each rank's numbers on its way round
               + all-gather,     w - 1 steps: the finished chunk goes round once more

A chunk starts at the rank after its own, so that it is finished when it reaches its own rank. Both
halves move w - 1 chunks, so a rank sends 2 (w - 1) / w of its bytes: no all-reduce sends fewer.

Source: P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
Workstations", 2009. Lesson: 03_ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ddp_lessons.collectives.reductions import combine, finish

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.distributed as dist

    from ddp_lessons.collectives import Peers


def all_reduce(flat: torch.Tensor, op: dist.ReduceOp.RedOpType, peers: Peers) -> None:
    """
    Put all ranks' numbers together in `flat`, in 2 (w - 1) steps.

    Args:
        flat: (n,), changed in place. All ranks get the same bits, as one rank finishes each chunk.
        op: An operation that `check_op` let pass.
        peers: The Peers.
    """
    chunks = flat.tensor_split(peers.world_size)  # w views
    reduce_scatter_chunks(chunks, op, peers)
    all_gather_chunks(chunks, peers)


def reduce_scatter(
    flat: torch.Tensor, parts: Sequence[torch.Tensor], op: dist.ReduceOp.RedOpType, peers: Peers
) -> None:
    """
    Put all ranks' part r together in `flat` of rank r, in w - 1 steps.

    Args:
        flat: (n,), written.
        parts: w tensors (n,), left as they are.
        op: An operation that `check_op` let pass.
        peers: The Peers.
    """
    chunks = [part.clone() for part in parts]
    reduce_scatter_chunks(chunks, op, peers)
    flat.copy_(chunks[peers.rank])


def all_gather(flat: torch.Tensor, parts: Sequence[torch.Tensor], peers: Peers) -> None:
    """
    Fill part r with `flat` of rank r, in w - 1 steps.

    Args:
        flat: (n,), left as it is.
        parts: w tensors, written; they may differ in length.
        peers: The Peers.
    """
    parts[peers.rank].copy_(flat)
    all_gather_chunks(parts, peers)


def reduce_scatter_chunks(
    chunks: Sequence[torch.Tensor], op: dist.ReduceOp.RedOpType, peers: Peers
) -> None:
    """
    Finish chunk r on rank r. The other chunks are left half done.

    Args:
        chunks: w flat tensors, changed in place.
        op: An operation that `check_op` let pass.
        peers: The Peers.
    """
    r, w = peers.rank, peers.world_size
    arrived = torch.empty_like(max(chunks, key=len))
    for step in range(w - 1):
        leaving = chunks[(r - 1 - step) % w]
        growing = chunks[(r - 2 - step) % w]
        incoming = arrived[: len(growing)]
        peers.exchange(leaving, (r + 1) % w, incoming, (r - 1) % w)
        combine(op, incoming, growing, out=growing)
    finish(op, chunks[r], w)


def all_gather_chunks(chunks: Sequence[torch.Tensor], peers: Peers) -> None:
    """
    Fill every chunk with that of its own rank.

    Args:
        chunks: w flat tensors; chunk r is read on rank r, the others are written.
        peers: The Peers.
    """
    r, w = peers.rank, peers.world_size
    for step in range(w - 1):
        leaving = chunks[(r - step) % w]
        arriving = chunks[(r - 1 - step) % w]
        peers.exchange(leaving, (r + 1) % w, arriving, (r - 1) % w)
