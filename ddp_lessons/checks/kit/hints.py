"""
Hints of a task, printed one at a time.
"""

from ddp_lessons.checks.kit.task_registry import find_task
from ddp_lessons.progress import notes


def hint(number: str) -> None:
    """
    Print the next hint of a task. After the last hint, print the last one again.

    Args:
        number: The task's number, such as "02.1".

    Raises:
        BadInput: There is no such task.
    """
    print(next_hint(number))


def next_hint(number: str) -> str:
    """
    Return the next hint of a task, and note that the learner took it.
    """
    task = find_task(number)
    place = notes.note_hint(number, len(task.hints))
    text = f"Hint {place + 1} of {len(task.hints)}: {task.hints[place]}"
    if place + 1 == len(task.hints):
        text += "\nThat was the last one."
    return text
