"""
The ring in segments: the same path and the same bytes as in `steps`, and no rank waits for a chunk.

Legend: rank r of w; `chunks` are w flat tensors, each cut into s `segments` of at most 4 MiB. A
*place* is a number from 0 to 2 (w - 1) s - 1 that counts the segments in the order of their
arrival: step 0's first, then step 1's. The segment at place p leaves again at place p + s.

It is fast for these reasons:

- A segment is sent on as soon as it is done, while the next ones of its chunk still arrive, so
  adding and moving overlap.
- Few messages: each wakes threads on both ranks, which costs as much as copying some 100 KiB.
- Receives are posted before anything is sent, and several ahead. Gloo sends no number before the
  other side has said that it is ready, so a message whose receive comes late waits for a way there
  and back. With two ahead, 4 MiB and more took 4 ranks a tenth longer than with four.
- An all-gather's segments arrive where they will stay: no copy.
- Chunks of at most 512 KiB are no good for a ring: their time is all latency. A tensor of such
  chunks goes up a tree and down again, as 2 log2(w) messages one after the other cost less than
  2 (w - 1), though they move more bytes. Recursive doubling has half as many, but every rank sends
  in every round: with 4 ranks on 2 cores it took five times as long as the tree.
- Room for what arrives is kept from one call to the next: see `spare`.
- Two ranks take the tree up to chunks of 4 MiB: one way there, one back. The ring's messages are
  half as long, and both ranks send at once; where the cores do the moving, that is no gain. With 2
  ranks on 2 cores, 2 to 8 MiB took the ring up to a sixth longer: Gloo's thread of a rank tries for
  the connection again and again while that rank's own thread writes, and takes the other rank's
  core. So the two ranks send in turns, and what will come is awaited before anything leaves.
- Above 2 MiB two ranks add up in halves, one while the other arrives. More parts, and a last one
  that is short, were no better: each message wakes threads.

Sources: P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
Workstations", 2009; R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
Operations in MPICH", 2005; Gloo, `transport/tcp/pair.cc`. Lesson: 03_ring.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ddp_lessons.collectives import rounds
from ddp_lessons.collectives.reductions import combine, finish

from . import steps
from .spare import SpareRoom

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    import torch.distributed as dist

    from ddp_lessons.collectives import Peers

SEGMENT_BYTES = 4 << 20
"""
Most bytes of a message: enough to make a message's cost small, few enough to add some while others
move. With 2 MiB, 16 MiB on 2 and on 4 ranks took a tenth longer.
"""

NUM_AHEAD = 4
"""
How many receives are posted before they are needed.
"""

SHORT_BYTES, PAIR_BYTES = 512 << 10, 4 << 20
"""
Most bytes of a chunk that is not worth a ring, and the same for two ranks on CPUs: w such chunks go
by a tree.
"""

WHOLE_BYTES = 2 << 20
"""
Most bytes that two ranks add up whole; more goes up in halves.
"""

_room = SpareRoom(SEGMENT_BYTES, NUM_AHEAD)
_room_of_pair = SpareRoom(2 * PAIR_BYTES, 1)


def all_reduce(flat: torch.Tensor, op: dist.ReduceOp.RedOpType, peers: Peers) -> None:
    """
    Put all ranks' numbers together in `flat`. Arguments as in `steps.all_reduce`.
    """
    w = peers.world_size
    if w == 2 and flat.is_cpu and flat.nbytes <= w * PAIR_BYTES:
        _pair(flat, op, peers)
    elif flat.nbytes <= w * SHORT_BYTES:
        _tree(flat, op, peers)
    elif flat.is_cuda:
        steps.all_reduce(flat, op, peers)  # NCCL cuts into segments by itself
    else:
        _travel(flat.tensor_split(w), range(2 * (w - 1)), op, peers)


def reduce_scatter(
    flat: torch.Tensor, parts: Sequence[torch.Tensor], op: dist.ReduceOp.RedOpType, peers: Peers
) -> None:
    """
    Put all ranks' part r together in `flat` of rank r. Arguments as in `steps.reduce_scatter`.
    """
    if flat.is_cuda:
        return steps.reduce_scatter(flat, parts, op, peers)
    w = peers.world_size
    chunks = [part.clone() for part in parts]
    _travel(chunks, range(w - 1), op, peers)
    flat.copy_(chunks[peers.rank])
    return None


def all_gather(flat: torch.Tensor, parts: Sequence[torch.Tensor], peers: Peers) -> None:
    """
    Fill part r with `flat` of rank r. Arguments as in `steps.all_gather`.
    """
    if flat.is_cuda:
        return steps.all_gather(flat, parts, peers)
    w = peers.world_size
    parts[peers.rank].copy_(flat)
    _travel(parts, range(w - 1, 2 * (w - 1)), None, peers)
    return None


def _tree(flat, op, peers):
    """
    Put all numbers together on rank 0, and send them out from there: equal bits on every rank.
    """
    rounds.reduce(flat, 0, op, peers)
    rounds.broadcast(flat, 0, peers)


def _pair(flat, op, peers):
    """
    The tree of two ranks: rank 1's numbers go to rank 0 in one or two parts, and the total returns.
    """
    parts = flat.tensor_split(2 if flat.nbytes > WHOLE_BYTES else 1)
    if peers.rank == 1:
        total = peers.start_receive(flat, 0)  # made of these numbers: it comes when they have left
        for work in [peers.start_send(part, 0) for part in parts]:
            work.wait()
        total.wait()
        return
    room = _room_of_pair.take(flat)
    rooms = room[: len(flat)].tensor_split(len(parts))
    works = [peers.start_receive(arriving, 1) for arriving in rooms]
    for work, arrived, part in zip(works, rooms, parts, strict=True):
        work.wait()
        combine(op, part, arrived, out=part)
    finish(op, flat, 2)
    _room_of_pair.give_back(room)
    peers.start_send(flat, 1).wait()


def _travel(chunks, ring_steps, op, peers):
    """
    Move segments round the ring: in steps below w - 1 they grow, in later ones they stay.

    Chunk r - 1 leaves rank r first. Every later chunk that leaves is the one that has just come.
    """
    r, w = peers.rank, peers.world_size
    num_segments = _num_segments(max(chunk.nbytes for chunk in chunks))
    table = [chunk.tensor_split(num_segments) for chunk in chunks]
    arriving = [(step, part) for step in ring_steps for part in table[(r - 2 - step) % w]]
    num_onward = len(arriving) - num_segments  # the last step's segments have come to their end
    spare = [_room.take(chunks[0]) for _ in range(min(NUM_AHEAD, len(arriving)))]

    incoming, sends = deque(), []

    def post(place):
        step, part = arriving[place]
        # Where it grows it must not overwrite what it is added to. Where it stays it may: the old
        # numbers have left, or the new ones, which are made of them, would not be under way.
        room = spare[place % len(spare)][: len(part)] if step < w - 1 else part
        incoming.append((peers.start_receive(room, (r - 1) % w), room))

    for place in range(len(spare)):
        post(place)
    for part in table[(r - 1 - ring_steps.start) % w] if arriving else ():
        sends.append(peers.start_send(part, (r + 1) % w))
    for place, (step, part) in enumerate(arriving):
        work, room = incoming.popleft()
        work.wait()
        if step < w - 1:
            combine(op, room, part, out=part)
        if step == w - 2:
            finish(op, part, w)
        if place < num_onward:
            sends.append(peers.start_send(part, (r + 1) % w))
        if place + len(spare) < len(arriving):
            post(place + len(spare))
    for work in sends:
        work.wait()
    for room in spare:
        _room.give_back(room)


def _num_segments(num_bytes):
    """
    Return into how many segments to cut. A tensor without numbers makes one, an empty one.
    """
    return max(-(-num_bytes // SEGMENT_BYTES), 1)
