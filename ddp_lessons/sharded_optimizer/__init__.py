"""
Who keeps the optimizer's state: each rank a part of it, over any class of optimizer.

Read the files in this order:

- `partition` shares whole parameters out, as evenly as it goes.
- `over_inner` is what all of them are: an optimizer over one of any class.
- `owners` is the naive way: whole parameters have owners.
- `pieces` cuts parameters into a piece for each rank, and `messages` sends them.
- `zero1` keeps the state for one piece of every parameter: ZeRO stage 1.
- `zero2` keeps gradients for one piece, too: stage 2.
- `overlapped` is the fast one: what it gathers comes in while the next forward computes.
- `saving` makes the state independent of the number of ranks.
- `counting` counts the bytes that a rank holds, and foretells them.
- `arguments` says what an optimizer refuses, and `example` is what the lesson trains.

Lesson: 13_sharded_optimizer.
"""

from .counting import foretold_bytes, held_bytes
from .messages import all_gather, reduce_scatter
from .overlapped import OverlappedOptimizer
from .owners import OwnerOptimizer
from .partition import partition
from .pieces import piece_bounds
from .saving import whole_state
from .zero1 import Zero1Optimizer
from .zero2 import Zero2Optimizer

__all__ = [
    "OverlappedOptimizer",
    "OwnerOptimizer",
    "Zero1Optimizer",
    "Zero2Optimizer",
    "all_gather",
    "foretold_bytes",
    "held_bytes",
    "partition",
    "piece_bounds",
    "reduce_scatter",
    "whole_state",
]
