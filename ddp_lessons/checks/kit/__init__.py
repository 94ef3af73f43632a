"""
What all checks share. A file of checks imports from here and writes tasks.

Read in this order: `tasks` (what a task is), `on_ranks` (what a rank does in a case), `checking`
(the kernel's side), `judging` (what is wrong with every answer that does so). `numbers` draws
numbers and derives tolerances, `plain` copies values, `on_paper` plays larger worlds, `hints` gives
them one at a time.
"""

from ddp_lessons.checks.kit.cases import Case
from ddp_lessons.checks.kit.judging import Played
from ddp_lessons.checks.kit.numbers import (
    generator,
    normal_numbers,
    sum_error,
    whole_numbers,
    words,
)
from ddp_lessons.checks.kit.plain import equal
from ddp_lessons.checks.kit.tasks import Task

__all__ = [
    "Case",
    "Played",
    "Task",
    "equal",
    "generator",
    "normal_numbers",
    "sum_error",
    "whole_numbers",
    "words",
]
