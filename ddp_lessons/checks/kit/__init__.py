"""
Code that all checks share. The module of a task imports names from here and defines its Task.

Read the modules in this order: `tasks` (the parts of a task), `mistakes` (a mistake and its hint),
`checking` (the kernel's side of a check), `judging` (mistakes that any answer can make),
`mistake_choice` (which of a task's own mistakes a case shows; it uses `comparing`), `case_failures`
(why a case did not end). `hints` prints hints one at a time. The folder `on_rank` holds the code
that runs in a rank while an answer is tried. `shared` holds what several tasks' checks use.
"""

from ddp_lessons.checks.kit.cases import Case
from ddp_lessons.checks.kit.judging import CaseResult
from ddp_lessons.checks.kit.mistake_choice import Expected, View, found_by
from ddp_lessons.checks.kit.mistakes import VALUES, Mistake
from ddp_lessons.checks.kit.on_rank.snapshots import equal
from ddp_lessons.checks.kit.shared.numbers import (
    generator,
    normal_numbers,
    sum_error,
    whole_numbers,
    words,
)
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
