"""
A model cut by its depth: each rank has some layers, and microbatches go through all of them.

Read the files in this order:

- `tables` says what each rank does, in order: GPipe, 1F1B, and interleaved 1F1B, as data.
- `calls` says which messages that takes, and finds out whether anybody waits for ever.
- `checking` refuses a table that leaves something out, does it twice, or never ends.
- `clock` says when each thing is done, how long it takes, and how much of that nobody uses.
- `stages` cuts a model.
- `messages` sends: the naive way, which waits, and the good way, which keeps handles.
- `engine` runs any table on real ranks.

Lesson: 15_beyond_ddp.
"""

from .calls import waiting_for_ever
from .checking import check_table, first_fault, most_alive
from .clock import bubble, timetable, total_ticks
from .engine import Pipeline
from .messages import KeptSends, WaitingSends
from .stages import cut
from .tables import BACKWARD, FORWARD, Action, gpipe, interleaved, one_f_one_b

__all__ = [
    "BACKWARD",
    "FORWARD",
    "Action",
    "KeptSends",
    "Pipeline",
    "WaitingSends",
    "bubble",
    "check_table",
    "cut",
    "first_fault",
    "gpipe",
    "interleaved",
    "most_alive",
    "one_f_one_b",
    "timetable",
    "total_ticks",
    "waiting_for_ever",
]
