"""
What all checks share. A module of a task imports from here and writes its Task.

Read in this order: `tasks` (what a task is), `mistakes` (what a mistake is), `checking` (the
kernel's side), `judging` (what is wrong with every answer that does so), `elimination` (which of a
task's mistakes a case shows, by what `comparing` finds), `ends` (why a case came to no end).
`hints` gives hints one at a time. Two rooms are beside them: `inside` is what runs in a rank while
an answer is tried, `material` what tasks are made of.
"""

from ddp_lessons.checks.kit.cases import Case
from ddp_lessons.checks.kit.elimination import Expected, View, found_by
from ddp_lessons.checks.kit.fixtures.numbers import (
    generator,
    normal_numbers,
    sum_error,
    whole_numbers,
    words,
)
from ddp_lessons.checks.kit.judging import CaseResult
from ddp_lessons.checks.kit.mistakes import VALUES, Mistake
from ddp_lessons.checks.kit.on_rank.snapshots import equal
from ddp_lessons.checks.kit.tasks import Task

__all__ = [
    "VALUES",
    "Case",
    "CaseResult",
    "Expected",
    "Mistake",
    "Task",
    "View",
    "equal",
    "found_by",
    "generator",
    "normal_numbers",
    "sum_error",
    "whole_numbers",
    "words",
]
