"""
Every collective in about log2(w) rounds: a rank that has data passes them on at once.

Legend: n numbers in a tensor, rank r of w. `flat` is (n,); `parts` are w of them. `distance` is
1, 2, 4, ... below w. Where there is a root, `place` is the rank counted from the root: (r - root)
mod w, so that the root has place 0. `hub` has the same functions; `calls` says what each means.

Nothing here can deadlock: in a tree a send waits only for a rank that receives next, and where two
ranks send at once they `exchange`.

Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations
in MPICH", 2005 (trees, recursive doubling); J. Bruck and others, "Efficient Algorithms for
All-to-All Communications in Multiport Message-Passing Systems", 1997; D. Hensgen, R. Finkel,
U. Manber, "Two Algorithms for Barrier Synchronization", 1988 (dissemination).
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


def distances(world_size: int) -> list[int]:
    """
    Return 1, 2, 4, ... below `world_size`: one number a round.
    """
    return [1 << bit for bit in range((world_size - 1).bit_length())]


def broadcast(flat: torch.Tensor, src: int, peers: Peers) -> None:
    """
    Double the number of ranks that have the numbers in each round: a binomial tree.
    """
    r, w = peers.rank, peers.world_size
    place = (r - src) % w
    for distance in distances(w):
        if place < distance and place + distance < w:
            peers.send(flat, (r + distance) % w)
        elif distance <= place < 2 * distance:
            peers.receive(flat, (r - distance) % w)


def scatter(flat: torch.Tensor, parts: Sequence[torch.Tensor], src: int, peers: Peers) -> None:
    """
    Send half of what one holds to a rank that passes it on: the tree from its widest branch.
    """
    r, w = peers.rank, peers.world_size
    place = (r - src) % w
    held = flat.new_empty((w, flat.numel()))  # row j is for place + j
    if place == 0:
        torch.stack([parts[(src + j) % w] for j in range(w)], out=held)
    for distance in reversed(distances(w)):
        if place % (2 * distance) == 0 and place + distance < w:
            there = held[distance : min(2 * distance, w - place)]
            peers.send(there.view(-1), (r + distance) % w)
        elif place % (2 * distance) == distance:
            here = held[: min(distance, w - place)]
            peers.receive(here.view(-1), (r - distance) % w)
    flat.copy_(held[0])


def gather(flat: torch.Tensor, parts: Sequence[torch.Tensor], dst: int, peers: Peers) -> None:
    """
    Pass on what one holds to a rank that holds as much: the tree of `scatter`, backwards.
    """
    r, w = peers.rank, peers.world_size
    place = (r - dst) % w
    held = flat.new_empty((w, flat.numel()))  # row j is of place + j
    held[0] = flat
    for distance in distances(w):
        if place % (2 * distance) == 0 and place + distance < w:
            there = held[distance : min(2 * distance, w - place)]
            peers.receive(there.view(-1), (r + distance) % w)
        elif place % (2 * distance) == distance:
            here = held[: min(distance, w - place)]
            peers.send(here.view(-1), (r - distance) % w)
    for j, row in enumerate(held if place == 0 else ()):
        parts[(dst + j) % w].copy_(row)


def reduce(flat: torch.Tensor, dst: int, op: dist.ReduceOp.RedOpType, peers: Peers) -> None:
    """
    Put numbers together in pairs, then pairs of pairs: the tree of `broadcast`, backwards.
    """
    r, w = peers.rank, peers.world_size
    place = (r - dst) % w
    # The caller's numbers stay on other ranks. At odd places nothing arrives to change them.
    total = flat if place == 0 or place % 2 else flat.clone()
    arrived: torch.Tensor  # nobody asks for it where it is None
    arrived = None if place % 2 else torch.empty_like(flat)  # type: ignore[assignment]
    for distance in distances(w):
        if place % (2 * distance) == 0 and place + distance < w:
            peers.receive(arrived, (r + distance) % w)
            combine(op, total, arrived, out=total)
        elif place % (2 * distance) == distance:
            peers.send(total, (r - distance) % w)
    if place == 0:
        finish(op, total, w)


def all_reduce(flat: torch.Tensor, op: dist.ReduceOp.RedOpType, peers: Peers) -> None:
    """
    Exchange everything with a partner, then with one twice as far away: recursive doubling.

    Partners are paired within a power of two of ranks. Ranks beyond it hand their numbers in before
    and get the result after. All ranks compute the same bits, as each keeps the lower rank's
    numbers on the left.
    """
    r, w = peers.rank, peers.world_size
    num_paired = 1 << (w.bit_length() - 1)  # the largest power of two up to w
    arrived = torch.empty_like(flat)
    if r >= num_paired:
        peers.send(flat, r - num_paired)
        return peers.receive(flat, r - num_paired)
    if r + num_paired < w:
        peers.receive(arrived, r + num_paired)
        combine(op, flat, arrived, out=flat)
    for distance in distances(num_paired):
        partner = r ^ distance
        peers.exchange(flat, partner, arrived, partner)
        lower, higher = (flat, arrived) if r < partner else (arrived, flat)
        combine(op, lower, higher, out=flat)
    finish(op, flat, w)
    if r + num_paired < w:
        peers.send(flat, r + num_paired)
    return None


def all_gather(flat: torch.Tensor, parts: Sequence[torch.Tensor], peers: Peers) -> None:
    """
    Double what every rank holds in each round: Bruck's algorithm. Parts may differ in length.
    """
    r, w = peers.rank, peers.world_size
    lengths = [parts[(r + j) % w].numel() for j in range(w)]
    held = flat.new_empty(sum(lengths))  # part r, then part r + 1, and so on round to r - 1
    held[: lengths[0]] = flat
    for distance in distances(w):
        num_moved = min(distance, w - distance)
        # The parts that rank r - distance lacks are this rank's first ones.
        end, start = sum(lengths[:num_moved]), sum(lengths[:distance])
        stop = sum(lengths[: distance + num_moved])
        peers.exchange(held[:end], (r - distance) % w, held[start:stop], (r + distance) % w)
    for j, part in enumerate(held.split(lengths)):
        parts[(r + j) % w].copy_(part)


def reduce_scatter(
    flat: torch.Tensor, parts: Sequence[torch.Tensor], op: dist.ReduceOp.RedOpType, peers: Peers
) -> None:
    """
    Halve what every rank still has to pass on in each round: `all_gather`, backwards.
    """
    r, w = peers.rank, peers.world_size
    held = torch.stack([parts[(r + j) % w] for j in range(w)])  # row j is for rank r + j
    arrived = torch.empty_like(held)
    for distance in reversed(distances(w)):
        num_moved = min(distance, w - distance)
        outgoing = held[distance : distance + num_moved].view(-1)
        incoming = arrived[:num_moved].view(-1)
        peers.exchange(outgoing, (r + distance) % w, incoming, (r - distance) % w)
        # The rows that arrive are for this rank and those after it, as held's first rows are.
        mine = held[:num_moved].view(-1)
        combine(op, incoming, mine, out=mine)
    flat.copy_(held[0])
    finish(op, flat, w)


def all_to_all(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    counts: Sequence[Sequence[int]],
    peers: Peers,
) -> None:
    """
    Move each part by the distances that add up to its way: Bruck's algorithm.

    Fewer messages than one to each rank, but a part travels up to log2(w) times.

    Args:
        outputs: Part s is written with what rank s sends here.
        inputs: Part t goes to rank t.
        counts: (w, w) numbers: entry s, t says how many go from rank s to rank t.
        peers: The Peers.
    """
    r, w = peers.rank, peers.world_size
    held = [inputs[(r + j) % w] for j in range(w)]  # what has j ranks to go in all
    for distance in distances(w):
        moved = [j for j in range(w) if j & distance]
        # The next part j has gone j mod distance ranks already, and rank r - distance holds it.
        sources = [(r - distance - j % distance) % w for j in moved]
        lengths = [counts[s][(s + j) % w] for s, j in zip(sources, moved, strict=True)]
        outgoing = torch.cat([held[j] for j in moved])
        incoming = outgoing.new_empty(sum(lengths))
        peers.exchange(outgoing, (r + distance) % w, incoming, (r - distance) % w)
        for j, part in zip(moved, incoming.split(lengths), strict=True):
            held[j] = part
    for j, part in enumerate(held):
        outputs[(r - j) % w].copy_(part)


def barrier(token: torch.Tensor, peers: Peers) -> None:
    """
    Tell a rank ahead and hear one behind, each round twice as far: dissemination.

    After k rounds a rank has heard, by way of others, of the 2^k ranks behind it.
    """
    r, w = peers.rank, peers.world_size
    heard = torch.empty_like(token)
    for distance in distances(w):
        peers.exchange(token, (r + distance) % w, heard, (r - distance) % w)
