"""
Helpers that try answers to the exercises on ranks, for the tests in `tests/answers`.

A check draws new cases each time. Here the cases are drawn from the test's name (see `draws`), so
that a failure can be repeated.
"""

import pytest
from bank import all_answers
from draws import drawn_from
from paths import ROOT

from ddp_lessons.checks.kit import checking
from ddp_lessons.checks.kit.task_registry import all_tasks
from ddp_lessons.course.notebooks.cell_roles import tags_of
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks
from ddp_lessons.errors import WrongAnswer
from ddp_lessons.ranks.kernel.cells import run_cell

TIMED = {
    "01.3": ("impatient", "late", "slow", "too-patient"),
    "10.2": ("alone", "impatient", "other-list", "slow", "too-patient"),
    "11.2": ("at-limit", "clock", "outlier", "victim"),
}
"""
Mistakes that only the clock shows, by task. A check subtracts the time that a rank waited for a
core, and accepts an answer in doubt. So these answers are tried while no other test runs.
"""
LOOP_S = 2.0
"""
Seconds that an answer with an endless loop runs here. It keeps all cores busy, so it gets only a
third of a check's usual deadline.
"""
TASKS = all_tasks()
EXERCISES = {place.stem: place for place in all_notebooks(ROOT) if not place.is_lesson}
WRONG = [answer for answer in all_answers() if answer.mistake is not None]
UNUSUAL = [answer for answer in all_answers() if answer.mistake is None]

every_task = pytest.mark.parametrize("number", TASKS)


def is_timed(answer):
    """
    Return whether only the clock shows an answer's mistake.
    """
    return answer.mistake in TIMED.get(answer.task, ())


def drawn_wrong_answers():
    """
    Return one wrong answer to each task, drawn from those whose mistake shows on a busy machine
    too.
    """
    return [
        drawn_from(number).choice(
            [answer for answer in WRONG if answer.task == number and not is_timed(answer)]
        )
        for number in TASKS
    ]


def name_of(answer):
    """
    Return the name of an answer's test.
    """
    return f"{answer.task} {answer.name}".replace(" ", "_")


def answer_cells(notebook):
    """
    Return {task number: source of its answer cell, without %%px}.
    """
    answers, number = {}, None
    for cell in notebook["cells"]:
        if cell["source"].startswith("## ") and "task" in tags_of(cell):
            number = cell["source"].split()[1]
        if "answer" in tags_of(cell):
            first, _, rest = cell["source"].partition("\n")
            assert first == "%%px"
            answers[number] = answers.get(number, "") + rest + "\n"
    return answers


def refusal(ranks, number, source):
    """
    Define an answer on the ranks, check it, and return the WrongAnswer that the check raises.
    """
    run_cell(ranks, source)
    with pytest.raises(WrongAnswer) as caught:
        checking.run_and_judge(TASKS[number], ranks)
    return caught.value


def expect_own_hint(ranks, answer):
    """
    Check a wrong answer, and assert that the error names its mistake and shows that mistake's hint.
    """
    with pytest.MonkeyPatch.context() as patch:
        if answer.mistake == "late" and not is_timed(answer):
            patch.setattr(checking, "DEADLINE_S", LOOP_S)  # it computes until the deadline
        error = refusal(ranks, answer.task, answer.source)
    task = TASKS[answer.task]
    assert error.mistake in (answer.mistake, answer.or_mistake), str(error)
    assert error.hint == task.all_hints[error.mistake]
    assert str(error).endswith(f"Hint: {error.hint}")
    assert task.hints[-1] not in str(error)  # the last hint, which gives the solution away
