"""
Exercise 14: what if nobody waits?

Legend: w ranks; G numbers in the trained weights; k workers of a server.
"""

from ddp_lessons.checks.asynchronous.local_sgd import local_sgd
from ddp_lessons.checks.asynchronous.outer_step import outer_step
from ddp_lessons.checks.asynchronous.serve import serve
from ddp_lessons.checks.asynchronous.share_work import share_work

TASKS = (
    serve,
    local_sgd,
    outer_step,
    share_work,
)
