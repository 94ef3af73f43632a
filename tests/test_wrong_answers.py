"""
The proofs of the exercises: blanks fail, wrong answers get their own hint, right ones pass.

A check draws its cases anew each time. Here they are drawn from the test's name, so that what
failed once fails again; `make test DRAWS=7` draws others.

`make test` tries the blank, the solution, and a wrong answer to each task, drawn too. `make bank`
tries all, and other right ones.
"""

import os
import random

import pytest
from bank import all_answers, hint_of

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.checks.kit import tasks
from ddp_lessons.checks.kit.checking import run_and_judge
from ddp_lessons.checks.kit.finding import all_tasks, stem_of
from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.course.notebooks.cells import tags_of
from ddp_lessons.course.notebooks.places import all_places, find_root
from ddp_lessons.errors import WrongAnswer
from ddp_lessons.progress import notes
from ddp_lessons.ranks.kernel.cells import run_cell

ROOT = find_root(__file__.rpartition("/")[0])
NUM_TASKS = {
    "00": 1, "01": 3, "02": 4, "03": 5, "04": 4, "05": 4, "06": 4, "07": 4, "08": 5, "09": 4,
    "10": 4, "11": 4, "12": 4, "13": 4, "14": 4, "15": 4, "16": 2, "17": 2,
}  # fmt: skip
DRAWS = os.environ.get("DRAWS") or "0"  # make hands on an empty one
NUM_TRIED = {"wrong": 1, "unusual": 0}
"""
Answers to a task that `make test` tries. `make bank` tries all, in ten minutes.
"""
TIMED = {
    "01.3": ("impatient", "late", "slow", "too-patient", "withdrawn"),
    "10.2": ("alone", "impatient", "other-list", "slow", "too-patient"),
    "11.2": ("at-limit", "clock", "outlier", "victim"),
}
"""
Mistakes that show by the clock alone. A check takes off what a rank waited for a core, and rather
lets one pass than refuse a right answer: so these are tried while no other test runs.
"""
FEWEST_HINTS = 3
FEWEST_WRONG = 4
TASKS = all_tasks()
ANSWERS = all_answers()
EXERCISES = {place.stem: place for place in all_places(ROOT) if not place.is_lesson}
WRONG = [answer for answer in ANSWERS if answer.mistake is not None]
UNUSUAL = [answer for answer in ANSWERS if answer.mistake is None]

_ranks_of: dict = {}  # the lesson that they serve, and they

every_task = pytest.mark.parametrize("number", TASKS)


def parameters(kind):
    """
    Return the answers of a kind as parameters: some drawn a task, the others for the whole bank.
    """
    found = []
    for number in TASKS:
        of_kind = WRONG if kind == "wrong" else UNUSUAL
        answers = [answer for answer in of_kind if answer.task == number]
        drawn = random.Random(f"{DRAWS} {number}").sample(answers, len(answers))
        rest = drawn[NUM_TRIED[kind] :]
        found += [pytest.param(one, marks=_marks(one, rest)) for one in answers]
    return found


def _marks(answer, rest):
    marks = [pytest.mark.bank] if answer in rest else []
    if answer.mistake in TIMED.get(answer.task, ()):
        marks.append(pytest.mark.alone)
    return marks


def name_of(answer):
    """
    Return what a test of an answer is called.
    """
    return f"{answer.task} {answer.name}".replace(" ", "_")


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """
    A folder for what a learner has solved.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield
    stop_ranks()


@pytest.fixture(autouse=True)
def _same_draws(request, monkeypatch):
    """
    Draw the cases of a test from its name.
    """
    drawn = random.Random(f"{DRAWS} {request.node.name}")
    monkeypatch.setattr(tasks.secrets, "randbits", drawn.getrandbits)


@pytest.fixture
def ranks(request, state):
    """
    Four ranks for all answers of a lesson: what one leaves behind, the next one has to bear.
    """
    lesson = request.node.callspec.id.partition(".")[0]
    if _ranks_of.get("lesson") != lesson:
        stop_ranks()
        _ranks_of.update(lesson=lesson, ranks=start_ranks(4))
    return _ranks_of["ranks"]


def answer_cells(notebook):
    """
    Return {number of a task: source of its answer cell, without %%px}.
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
    Give an answer to the ranks, check it, and return the WrongAnswer.
    """
    run_cell(ranks, source)
    with pytest.raises(WrongAnswer) as caught:
        run_and_judge(TASKS[number], ranks)
    return caught.value


def test_every_task_of_the_syllabus_is_there():
    """
    A lesson without its tasks teaches half.
    """
    numbers = [f"{lesson}.{n}" for lesson, most in NUM_TASKS.items() for n in range(1, most + 1)]
    assert list(TASKS) == numbers
    assert sorted(EXERCISES) == sorted({stem_of(task) for task in TASKS.values()})


@every_task
def test_task_has_hints_wrong_answers_an_unusual_one_and_a_picture(number):
    """
    A check is proven by what it refuses, and by the right answer that it does not.
    """
    task = TASKS[number]
    assert len(task.hints) >= FEWEST_HINTS
    assert len(set(task.hints)) == len(task.hints)
    assert len({a.mistake for a in WRONG if a.task == number}) >= FEWEST_WRONG
    assert any(a.task == number for a in UNUSUAL)
    notebook = read_notebook(EXERCISES[stem_of(task)].notebook)
    sources = [cell["source"] for cell in notebook["cells"]]
    assert any(f"check.{task.name}()" in source for source in sources)
    assert any(f"check.{task.name}.picture()" in source for source in sources)


@every_task
def test_every_hint_of_a_mistake_is_proven_by_an_answer(number):
    """
    A hint that no answer gets is a guess.
    """
    proven = {answer.mistake for answer in WRONG if answer.task == number}
    assert set(TASKS[number].mistakes) - proven == set()


@pytest.mark.ranks
@every_task
def test_blank_fails_with_a_message_that_a_beginner_understands(ranks, number):
    """
    Whoever runs the notebook as it comes must learn what to do.
    """
    task = TASKS[number]
    blank = answer_cells(read_notebook(EXERCISES[stem_of(task)].blank))[number]
    error = refusal(ranks, number, blank)
    assert error.mistake == "blank"
    assert f"{task.name} is still blank" in str(error)
    assert "Replace the line that raises NotImplementedError" in str(error)


@pytest.mark.ranks
@pytest.mark.parametrize("answer", parameters("wrong"), ids=name_of)
def test_wrong_answer_gets_its_own_hint(ranks, answer):
    """
    The mistake is told apart from others, with what was tried and the hint for it.
    """
    error = refusal(ranks, answer.task, answer.source)
    task = TASKS[answer.task]
    assert error.mistake in (answer.mistake, answer.or_mistake), str(error)
    assert error.hint == hint_of(task, error.mistake)
    assert str(error).endswith(f"Hint: {error.hint}")
    assert task.hints[-1] not in str(error)  # what it would take to write it down


@pytest.mark.ranks
@pytest.mark.parametrize("answer", parameters("unusual"), ids=name_of)
def test_unusual_right_answer_passes(ranks, answer):
    """
    Checks judge what ranks do, not how an answer is written.
    """
    run_cell(ranks, answer.source)
    assert run_and_judge(TASKS[answer.task], ranks)


@pytest.mark.ranks
@every_task
def test_solution_passes_and_draws_its_picture(ranks, number):
    """
    The same answer gets the same line, and a picture of what it did.
    """
    task = TASKS[number]
    solutions = answer_cells(read_notebook(EXERCISES[stem_of(task)].notebook))
    for earlier in sorted(other for other in solutions if other <= number):
        run_cell(ranks, solutions[earlier])  # one may call those before it
    task(ranks)
    assert notes.row_of(number)["is_passed"]
    picture = task.picture()
    drawn = getattr(picture, "_repr_svg_", None) or picture._repr_png_  # a PNG of what was measured
    assert drawn()[:4] in ("<svg", b"\x89PNG")
