"""
The tasks of the course: each lesson's folder in `checks` lists its own in `TASKS`.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_lessons.errors import BadInput

if TYPE_CHECKING:
    from ddp_lessons.checks.kit.tasks import Task

_CHECKS = str(Path(__file__).parents[1])
_KIT = Path(__file__).parent.name


def all_tasks() -> dict[str, Task]:
    """
    Return every task of the course as {number: Task}, ordered by number.
    """
    found = {}
    for module in pkgutil.iter_modules([_CHECKS]):
        if module.name != _KIT:
            stem = importlib.import_module(f"ddp_lessons.checks.{module.name}")
            found.update({task.number: task for task in stem.TASKS})
    return dict(sorted(found.items()))


def stem_of(task: Task) -> str:
    """
    Return the lesson id of a task's exercise, such as "02_collectives".
    """
    return f"{task.number.partition('.')[0]}_{task.module.split('.')[2]}"


def find_task(number: str) -> Task:
    """
    Return the task with a number such as "02.1".

    Raises:
        BadInput: No task has this number.
    """
    tasks = all_tasks()
    if number not in tasks:
        raise BadInput(
            f"Unknown task: expected one of {', '.join(tasks)} (got {number!r}). "
            "Take the number from the heading of the task."
        )
    return tasks[number]
