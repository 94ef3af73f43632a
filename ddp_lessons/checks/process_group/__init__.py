"""
Exercise 01: how strangers become a group.

Legend: rank r of w. An answer to 01.1 or 01.3 is called in no group, one to 01.2 in a new group.
"""

from ddp_lessons.checks.process_group.even_and_odd import even_and_odd
from ddp_lessons.checks.process_group.join import join
from ddp_lessons.checks.process_group.missing import missing

TASKS = (
    join,
    even_and_odd,
    missing,
)
