"""
The tasks of the course: each is a Task in a module of its lesson's folder in `checks`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_lessons.errors import BadInput

if TYPE_CHECKING:
    from ddp_lessons.checks.kit.tasks import Task

_CHECKS = str(Path(__file__).parents[1])
_KIT = Path(__file__).parent.name


def tasks_in(package: str) -> dict[str, Task]:
    """
    Return the tasks of one lesson as {name: Task}, ordered by number.

    The lesson's package adds them to its own names, so that `check.all_reduce()` finds a Task, and
    not the module of the same name.

    Args:
        package: The package's `__name__`, such as "ddp_lessons.checks.ring".
    """
    from ddp_lessons.checks.kit.tasks import Task

    modules = [
        importlib.import_module(f"{package}.{module.name}")
        for module in pkgutil.iter_modules(sys.modules[package].__path__)
    ]
    tasks = {
        value.name: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Task)
    }
    return dict(sorted(tasks.items(), key=lambda item: item[1].number))


def all_tasks() -> dict[str, Task]:
    """
    Return every task of the course as {number: Task}, ordered by number.
    """
    found = {}
    for module in pkgutil.iter_modules([_CHECKS]):
        if module.name != _KIT:
            package = f"ddp_lessons.checks.{module.name}"
            importlib.import_module(package)
            found.update({task.number: task for task in tasks_in(package).values()})
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
