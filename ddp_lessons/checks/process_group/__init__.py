"""
Exercise 01: how separate processes become a group.

Legend: rank r of w. The answers to 01.1 and 01.3 are called while no process group exists, the
answer to 01.2 in a new one.
"""

from ddp_lessons.checks.process_group.even_and_odd import even_and_odd
from ddp_lessons.checks.process_group.join import join
from ddp_lessons.checks.process_group.missing import missing

TASKS = (
    join,
    even_and_odd,
    missing,
)
