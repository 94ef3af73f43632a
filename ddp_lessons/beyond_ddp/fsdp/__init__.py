"""
Fully sharded data parallel: a rank keeps a part of every parameter, and gathers it when needed.

Read the files in this order:

- `naive` gathers all at once, and frees it when backward is over: FSDP in one autograd function.
- `flat` is what a unit shares out: several parameters in one flat tensor, cut for the ranks.
- `units` says which parameters are gathered together.
- `fully_sharded` gathers unit by unit, forward and backward, and frees what was used.
- `rounds` is one backward: who is gathered, what is reduced, and what is left at its end.
- `states` collects the whole model, takes one in, and tells a checkpoint where each shard belongs.
- `counting` counts the bytes that a rank holds and sends, and foretells them.
- `example` is what the lesson trains.

Lesson: 15_beyond_ddp.
"""

from .counting import foretold_held_bytes, foretold_sent_bytes, held_bytes
from .fully_sharded import FullySharded
from .naive import NaiveSharded
from .states import full_state_dict, load_full_state_dict
from .units import plan_units

__all__ = [
    "FullySharded",
    "NaiveSharded",
    "foretold_held_bytes",
    "foretold_sent_bytes",
    "full_state_dict",
    "held_bytes",
    "load_full_state_dict",
    "plan_units",
]
