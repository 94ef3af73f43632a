"""
Exercise 10: find out why nothing happens.

Legend: w ranks; a dump is the stack of one rank, as faulthandler writes it.
"""

from ddp_lessons.checks.hangs.culprit import culprit
from ddp_lessons.checks.hangs.hanging_scripts import hanging_scripts
from ddp_lessons.checks.hangs.odd_calls import odd_calls
from ddp_lessons.checks.hangs.sum_or_missing import sum_or_missing

TASKS = (
    culprit,
    sum_or_missing,
    odd_calls,
    hanging_scripts,
)
