"""
The bank: answers that prove the checks. Each wrong answer has the hint that it must get; some right
answers are unusual.

    python tests/answers/bank.py          print it: task, answer, hint
    python tests/answers/bank.py 03       of one exercise
"""

import importlib
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """
    An answer to a task.

        Args:
            task: The task's number, such as "02.1".
            name: The mistake or the approach, in a few words.
            mistake: The mistake that its check must name, or None if the answer is right.
            source: The cell that defines it, without its first line `%%px`.
            or_mistake: Another mistake of this answer, if chance decides which shows first.
    """

    task: str
    name: str
    mistake: str | None
    source: str
    or_mistake: str | None = None


def changed(source, *pairs):
    """
    Return a source in which each old text of the pairs (old, new), which must occur, is replaced.
    """
    for old, new in pairs:
        assert old in source, f"{old!r} does not stand in this source"
        source = source.replace(old, new)
    return source


def changing(sources):
    """
    Return a function (task, name, mistake, *pairs) that makes an Answer from a task's source with
    changes.

        Args:
            sources: Number of a task -> the source of a right answer to it.
    """
    return lambda task, name, mistake, *pairs: Answer(
        task, name, mistake, changed(sources[task], *pairs)
    )


def all_answers():
    """
    Return every answer of `tests/answers/wrong_answers`, in the order of the tasks.
    """
    import wrong_answers

    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(wrong_answers.__path__, "wrong_answers.")
        if not found.ispkg and not found.name.endswith(".sources")
    ]
    answers = [answer for module in modules for answer in module.ANSWERS]
    return sorted(answers, key=lambda answer: answer.task)


def main(arguments):
    """
    Print the table of wrong answers.
    """
    from rich.console import Console
    from rich.table import Table

    from ddp_lessons.checks.kit.task_registry import all_tasks

    wanted, tasks = arguments[0] if arguments else "", all_tasks()
    table = Table("Task", "Wrong answer", "Hint", title="What the checks refuse")
    num_wrong = 0
    for answer in all_answers():
        if answer.mistake is not None and answer.task.startswith(wanted):
            num_wrong += 1
            task = tasks[answer.task]
            table.add_row(f"{task.number} {task.name}", answer.name, task.all_hints[answer.mistake])
    Console().print(table)
    print(f"{num_wrong} wrong answers")


if __name__ == "__main__":
    # Modules of the bank import this file by its name, so that there is only one class Answer.
    sys.path.insert(0, str(Path(__file__).parent))
    importlib.import_module("bank").main(sys.argv[1:])
