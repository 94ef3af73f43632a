"""
Tests of the notebook that is run to judge a submission.
"""

import nbformat
import pytest
from paths import ROOT

from ddp_lessons.course.classroom import judged_notebook
from ddp_lessons.course.learner.exercises import find_exercise, tasks_of_stem
from ddp_lessons.errors import BadInput

PATHS = find_exercise("02", ROOT)
NUMBERS = [task.number for task in tasks_of_stem(PATHS.stem)]


def sources(notebook):
    """
    Return the sources of a notebook's code cells.
    """
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture
def learners(tmp_path):
    """
    Return a function that changes the starter's cells, saves them, and returns what is judged.
    """

    def judge(change):
        notebook = nbformat.read(PATHS.blank, as_version=4)
        notebook.cells = change(notebook.cells)
        path = tmp_path / PATHS.blank.name
        nbformat.write(notebook, path)
        return judged_notebook.make(path, PATHS)

    return judge


def test_an_unchanged_exercise_is_judged_as_it_stands(learners):
    """
    Setup, answers and checks follow each other as in the starter; pictures are left out.
    """
    judged = learners(lambda cells: cells)
    given = [cell for cell in nbformat.read(PATHS.blank, as_version=4).cells if "source" in cell]
    expected = [
        cell.source
        for cell in given
        if cell.cell_type == "code" and "picture" not in cell.metadata.tags
    ]
    assert sources(judged.notebook) == expected
    calls = [f"check.{task.name}()" for task in tasks_of_stem(PATHS.stem)]
    assert [sources(judged.notebook)[judged.checks[number]] for number in NUMBERS] == calls


def test_no_code_of_the_learner_runs_in_the_kernel(learners):
    """
    Only cells of the learner's that begin with a plain `%%px` are run: neither a changed
    setup, a forged check nor an option that reaches the kernel.
    """
    forged = ["check = print", "%%px --local\n1", "%%px --out check\n1", "%px 1", "%%pxy\n1"]
    own = "\n%%px  \nanswer = 1"

    def change(cells):
        for cell in cells:
            if cell.cell_type == "code" and not cell.source.startswith("%%px"):
                cell.source = "print('ok')"
        new = [nbformat.v4.new_code_cell(source) for source in [*forged, own]]
        return cells + new

    judged = learners(change)
    found = sources(judged.notebook)
    assert not set(found) & {*forged, "print('ok')"}
    assert own.strip() in found
    assert "ranks = start_ranks(4)" in found[0]
    assert judged.answers[NUMBERS[-1]][-1] == own.strip()


def test_without_headings_all_answers_come_before_the_checks(learners):
    """
    A learner who has deleted text and checks is judged: all cells run, and then each check.
    """
    judged = learners(lambda cells: [cell for cell in cells if cell.source.startswith("%%px")])
    found = sources(judged.notebook)
    first = min(judged.checks.values())
    assert all(source.startswith("%%px") for source in found[1:first])
    assert sorted(judged.checks) == NUMBERS


def test_a_notebook_of_something_else_is_told(tmp_path):
    """
    A lesson, another exercise, an empty file and one that was cut off are told apart.
    """
    place = {
        "a lesson": ROOT / "notebooks" / PATHS.blank.name,
        "the exercise of task 03.1": find_exercise("03", ROOT).blank,
    }
    for got, path in place.items():
        with pytest.raises(BadInput, match=rf"^Another notebook: .*\(got {got}\)"):
            judged_notebook.make(path, PATHS)
    path = tmp_path / PATHS.blank.name
    nbformat.write(nbformat.v4.new_notebook(), path)
    with pytest.raises(BadInput, match="got none of its tasks"):
        judged_notebook.make(path, PATHS)
    for text in ("", PATHS.blank.read_text()[:500]):
        path.write_text(text)
        with pytest.raises(BadInput, match=r"^Not a notebook: .* Ask for it again"):
            judged_notebook.make(path, PATHS)
