"""
The ring in segments: the same path and the same bytes as in `steps`, and no rank waits for a chunk.

Legend: rank r of w; `chunks` are w flat tensors, each cut into s `segments` of at most 1 MiB. A
*place* is a number from 0 to 2 (w - 1) s - 1 that counts the segments in the order of their
arrival: step 0's first, then step 1's. What arrives at place p leaves again at place p + s.

What makes it fast:

- A segment is sent on as soon as it is done, while the next ones of its chunk still arrive, so
  adding and moving overlap, and a segment is still in the processor's cache when it is used again.
- Receives are posted a few places ahead, so a message never waits for one to be there.
- An all-gather's segments arrive where they will stay: no copy.
- A tensor of at most 64 KiB goes up a tree and down again: its time is all latency, and 2 log2(w)
  messages one after the other cost less than 2 (w - 1), though they move more bytes. Recursive
  doubling has half as many, but every rank sends in every round, and where ranks share cores each
  message wakes somebody: with 4 ranks on 2 cores it took five times as long as the tree.

Sources: P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
Workstations", 2009; R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
Operations in MPICH", 2005. Lesson: 03_ring.
"""

from collections import deque

import torch

from ddp_lessons.collectives import rounds
from ddp_lessons.collectives.reductions import combine, finish

from . import steps

SEGMENT_BYTES = 1 << 20
"""
Most bytes of a message: few enough for a core's cache, enough to make a message's cost small.
"""

NUM_AHEAD = 4
"""
How many receives are posted before they are needed.
"""

SHORT_BYTES = 64 << 10
"""
Most bytes of a tensor that goes by a tree.
"""


def all_reduce(flat, op, peers):
    """
    Put all ranks' numbers together in `flat`. Arguments as in `steps.all_reduce`.
    """
    if flat.nbytes <= SHORT_BYTES:
        _tree(flat, op, peers)
    elif flat.is_cuda:
        steps.all_reduce(flat, op, peers)  # NCCL cuts into segments by itself
    else:
        w = peers.world_size
        _travel(flat.tensor_split(w), range(2 * (w - 1)), op, peers)


def reduce_scatter(flat, parts, op, peers):
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


def all_gather(flat, parts, peers):
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


def _travel(chunks, ring_steps, op, peers):
    """
    Move segments round the ring: in steps below w - 1 they grow, in later ones they stay.

    Chunk r - 1 leaves rank r first. Every later chunk that leaves is the one that has just come.
    """
    r, w = peers.rank, peers.world_size
    # Rounded up; a tensor without numbers still makes one segment, an empty one.
    num_segments = max(-(-max(chunk.nbytes for chunk in chunks) // SEGMENT_BYTES), 1)
    table = [chunk.tensor_split(num_segments) for chunk in chunks]
    arriving = [(step, part) for step in ring_steps for part in table[(r - 2 - step) % w]]
    num_onward = len(arriving) - num_segments  # the last step's segments have come to their end
    spare = _spare_buffers(table, min(NUM_AHEAD, len(arriving)))

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


def _spare_buffers(table, num_buffers):
    """
    Return room for segments that are not added yet. Segments' lengths differ by one or two.
    """
    longest = max((part for parts in table for part in parts), key=len)
    return [torch.empty_like(longest) for _ in range(num_buffers)]
