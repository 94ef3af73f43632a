"""
Ring reduce-scatter, all-gather and all-reduce: no centre, and the fewest bytes there can be.

    from ddp_lessons.ring import pipelined, textbook

    textbook.all_reduce(tensor)    # one chunk a step: what the pictures show
    pipelined.all_reduce(tensor)   # the same bytes in small segments: as fast as Gloo's own

Read `steps` first: it is the ring of the papers. `segments` keeps its path and its bytes, and lets
a rank send the front of a chunk on while the back of it still arrives.

Lesson: 03_ring.
"""

from ddp_lessons.collectives import AllRankCalls

from . import segments, steps
from .received import tcp_bytes_received
from .watching import chunks_at_each_step, one_way_s

__all__ = ["chunks_at_each_step", "one_way_s", "pipelined", "tcp_bytes_received", "textbook"]

textbook = AllRankCalls(steps)
"""
The ring, one chunk a step.
"""

pipelined = AllRankCalls(segments)
"""
The ring, in segments; tensors too short for a ring go up a tree and down again.
"""
