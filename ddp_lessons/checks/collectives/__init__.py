"""
Exercise 02: the data that moves when ranks communicate.

Legend: n numbers in a tensor, w ranks.
"""

from ddp_lessons.checks.collectives.all_gather_unequal import all_gather_unequal
from ddp_lessons.checks.collectives.all_reduce import all_reduce
from ddp_lessons.checks.collectives.broadcast import broadcast
from ddp_lessons.checks.collectives.exchange import exchange

TASKS = (
    all_reduce,
    all_gather_unequal,
    exchange,
    broadcast,
)
