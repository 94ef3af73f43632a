"""
Cut each layer: every rank multiplies by a part of its weight.

Read the files in this order:

- `operators` has the two functions between ranks: each is the other's backward.
- `cutting` says which part of a weight a rank has.
- `naive` cuts every layer alike, and gathers what comes out of each.
- `layers` cuts by turns, by rows and by columns, and sends once for two layers.
- `blocks` makes of them what a transformer has: an MLP, and attention by heads.
- `counting` foretells what they send and hold.

Lesson: 15_beyond_ddp.
"""

from .blocks import ParallelAttention, ParallelMLP
from .counting import held_numbers, pair_bytes, sent_by_ring
from .cutting import part_of
from .layers import ColumnParallelLinear, RowParallelLinear
from .naive import GatheringLinear
from .operators import enter, leave

__all__ = [
    "ColumnParallelLinear",
    "GatheringLinear",
    "ParallelAttention",
    "ParallelMLP",
    "RowParallelLinear",
    "enter",
    "held_numbers",
    "leave",
    "pair_bytes",
    "part_of",
    "sent_by_ring",
]
