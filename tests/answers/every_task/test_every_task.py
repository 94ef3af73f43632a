"""
Each task of each exercise: its blank fails, a wrong answer gets its own hint, and its solution
passes.

`make bank` tries all wrong answers, and the unusual right ones.
"""

import re

import pytest
from answers import (
    EXERCISES,
    TASKS,
    UNUSUAL,
    WRONG,
    answer_cells,
    drawn_wrong_answers,
    every_task,
    expect_own_hint,
    name_of,
    refusal,
)
from paths import ROOT

from ddp_lessons.checks.kit.task_registry import stem_of
from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.progress import notes
from ddp_lessons.ranks.kernel.cells import run_cell

HEADING = re.compile(r"^# ## (\d\d\.\d+) ", re.MULTILINE)
FEWEST_HINTS = 3
FEWEST_WRONG = 4


def test_every_task_of_the_syllabus_is_there():
    """
    All tasks exist: a lesson without its tasks teaches only half.
    """
    texts = sorted((ROOT / "exercises" / "py").glob("*.py"))
    headings = {path.stem: HEADING.findall(path.read_text()) for path in texts}
    assert list(TASKS) == [number for numbers in headings.values() for number in numbers]
    for stem, numbers in headings.items():
        assert numbers == [f"{stem[:2]}.{n}" for n in range(1, len(numbers) + 1)]
    assert sorted(EXERCISES) == sorted({stem_of(task) for task in TASKS.values()})


@every_task
def test_task_has_hints_wrong_answers_an_unusual_one_and_a_picture(number):
    """
    A check is proven by the wrong answers that it refuses, and by the right answers that it
    accepts.
    """
    task = TASKS[number]
    assert len(task.hints) >= FEWEST_HINTS
    assert len(set(task.hints)) == len(task.hints)
    assert re.fullmatch(r"\d+\.\d+\.\d+", task.changed_in)
    assert len({a.mistake for a in WRONG if a.task == number}) >= FEWEST_WRONG
    assert any(a.task == number for a in UNUSUAL)
    notebook = read_notebook(EXERCISES[stem_of(task)].notebook)
    sources = [cell["source"] for cell in notebook["cells"]]
    assert any(f"check.{task.name}()" in source for source in sources)
    assert any(f"check.{task.name}.picture()" in source for source in sources)


@every_task
def test_every_mistake_has_one_wrong_answer(number):
    """
    Each mistake has one wrong answer: a hint that no answer gets is a guess, and a second answer
    proves nothing more.
    """
    proven = [answer.mistake for answer in WRONG if answer.task == number]
    assert set(TASKS[number].own_hints) - set(proven) == set()
    assert len(proven) == len(set(proven))


@every_task
def test_blank_fails_with_a_message_that_a_beginner_understands(ranks, number):
    """
    The blank fails with a message that tells a learner who runs the notebook unchanged what to do.
    """
    task = TASKS[number]
    blank = answer_cells(read_notebook(EXERCISES[stem_of(task)].blank))[number]
    error = refusal(ranks, number, blank)
    assert error.mistake == "blank", str(error)
    assert f"{task.name} is still blank" in str(error)
    assert "Replace the line that raises NotImplementedError" in str(error)


@pytest.mark.parametrize("answer", drawn_wrong_answers(), ids=name_of)
def test_wrong_answer_gets_its_own_hint(ranks, answer):
    """
    Each task's check refuses one wrong answer, with the answer's own hint. The other wrong answers
    are in the bank.
    """
    expect_own_hint(ranks, answer)


@every_task
def test_solution_passes_and_draws_its_picture(ranks, number):
    """
    A solution passes, the learner's state says so, and there is a picture of what it did.
    """
    task = TASKS[number]
    solutions = answer_cells(read_notebook(EXERCISES[stem_of(task)].notebook))
    for earlier in sorted(other for other in solutions if other <= number):
        run_cell(ranks, solutions[earlier])  # it may call earlier answers
    task(ranks)
    assert notes.row_of(number)["is_passed"]
    picture = task.picture()
    drawn = getattr(picture, "_repr_svg_", None) or picture._repr_png_  # measurements are a PNG
    assert drawn()[:4] in ("<svg", b"\x89PNG")
