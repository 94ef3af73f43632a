"""
The renewal of a learner's files: what counts as an edit, and what the new version takes over.
"""

import json

import nbformat
import pytest
from published_course import edit_notebook, sources
from toy_lesson import make_course

from ddp_lessons.course.learner.workspace import update
from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.progress import renewal

LESSON = "notebooks/00_toy.ipynb"
GUESS = 'predict("first", ...)'


@pytest.fixture
def course(tmp_path):
    """
    Return the root of a course of one lesson.
    """
    return make_course(tmp_path / "course").text.parents[2]


@pytest.fixture
def mine(tmp_path, course):
    """
    Return a learner's folder that was made from the course.
    """
    update(tmp_path / "mine", course)
    return tmp_path / "mine"


def change(course, old="A sum that is wrong", new="A wrong sum"):
    """
    Change the lesson's text in the course.
    """
    path = course / "notebooks/py/00_toy.py"
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    "guess",
    [
        'predict("first", 41)',
        "predict('first', \"b\")",
        'predict("first", 2 * (3 + 4))  # I am not sure',
        'predict("first", a word)',
        'predict("first",)',
    ],
)
def test_a_filled_in_prediction_is_no_edit(course, mine, guess):
    """
    A notebook that was run and has a prediction filled in is renewed, and the prediction is taken
    over: a typo in the lesson must not cost a second notebook.
    """
    edit_notebook(mine / LESSON, GUESS, guess)
    change(course)
    assert str(update(mine, course)) == f"brought up to date: {LESSON}"
    text = sources(mine / LESSON)
    assert "A wrong sum" in text
    assert (guess in text) == (guess != 'predict("first",)')
    assert str(update(mine, course)) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (GUESS, 'predict("second", 41)'),
        (GUESS, f"x = 1\n{GUESS}"),
        ("print(41)", "print(40)"),
        ("A sum that", "The sum that"),
    ],
)
def test_any_other_change_of_a_cell_is_an_edit(course, mine, old, new):
    """
    Any other change of a cell is an edit: the notebook stays, and its new version beside it has the
    predictions that were filled in.
    """
    edit_notebook(mine / LESSON, old, new)
    edit_notebook(mine / LESSON, 'predict("mended", ...)', 'predict("mended", 3)')
    before = (mine / LESSON).read_bytes()
    change(course)
    assert list(update(mine, course).beside) == [LESSON]
    assert (mine / LESSON).read_bytes() == before
    text = sources(mine / "notebooks/00_toy.new.ipynb")
    assert "A wrong sum" in text
    assert 'predict("mended", 3)' in text


def test_a_renewed_notebook_is_written_as_the_course_writes_it(course, mine):
    """
    A renewed notebook with predictions differs from the course's by their lines alone, and is a
    valid notebook.
    """
    blank = (mine / LESSON).read_text()
    guess = GUESS.replace("...", "41")
    edit_notebook(mine / LESSON, GUESS, guess)
    renewed = renewal.with_predictions(blank, (mine / LESSON).read_text())
    assert renewed == blank.replace(json.dumps(GUESS), json.dumps(guess))
    (mine / LESSON).write_text(renewed)
    assert read_notebook(mine / LESSON)


def test_a_prediction_whose_question_is_gone_is_left_out(course, mine):
    """
    A prediction whose question is gone from the new version is left out. The learner's state has it
    still.
    """
    edit_notebook(mine / LESSON, GUESS, GUESS.replace("...", "4100"))
    change(course, GUESS, 'predict("other", ...)')
    assert update(mine, course).renewed == [LESSON]
    text = sources(mine / LESSON)
    assert 'predict("other", ...)' in text
    assert "4100" not in text


def test_notes_of_an_earlier_version_of_the_course_are_understood(course, mine):
    """
    Notes in which predictions were a part of the digest still tell an unedited notebook: learners
    who update the course would else get every lesson twice.
    """
    notes = json.loads((mine / renewal.NOTES).read_text())
    text = (mine / LESSON).read_text()
    notes["given"][LESSON] = renewal.digest(LESSON, text, is_verbatim=True)
    assert notes["given"][LESSON] != renewal.digest(LESSON, text)
    (mine / renewal.NOTES).write_text(json.dumps(notes))
    change(course)
    assert str(update(mine, course)) == f"brought up to date: {LESSON}"


def test_an_open_notebook_gets_its_new_version_beside_it_until_the_next_start(course, mine):
    """
    An open notebook is not replaced under its reader. The next update replaces it, and removes the
    copy beside it if nobody has worked in that.
    """
    change(course)
    update(course.with_name("other"), course)
    files = {LESSON: (course.with_name("other") / LESSON).read_text()}
    beside = mine / "notebooks/00_toy.new.ipynb"
    for _ in range(2):
        update_made = renewal.renew(mine, files, is_open=lambda path: True)
    assert str(update_made) == ""
    assert "A sum that is wrong" in sources(mine / LESSON)
    assert "A wrong sum" in sources(beside)
    edit_notebook(mine / LESSON, GUESS, GUESS.replace("...", "41"))
    assert str(update(mine, course)) == f"brought up to date: {LESSON}"
    assert not beside.exists()


def test_two_versions_beside_an_open_notebook_are_one_copy(course, mine):
    """
    A second version takes the place of the first one beside an open notebook, and goes with it.
    """
    change(course)
    update(course.with_name("other"), course)
    text = (course.with_name("other") / LESSON).read_text()
    for version in (text, text.replace("A wrong sum", "An untrue sum")):
        renewal.renew(mine, {LESSON: version}, is_open=lambda path: path == mine / LESSON)
    (beside,) = (mine / "notebooks").glob("*.new*")
    assert "An untrue sum" in sources(beside)
    renewal.renew(mine, {LESSON: text.replace("A wrong sum", "A false sum")})
    assert "A false sum" in sources(mine / LESSON)
    assert not beside.exists()


def test_a_copy_that_is_open_or_has_run_stays_beside_the_next_one(course, mine):
    """
    A copy that a learner has open, or whose cells have run, is neither replaced nor removed.
    """
    change(course)
    update(course.with_name("other"), course)
    text = (course.with_name("other") / LESSON).read_text()
    beside = mine / "notebooks/00_toy.new.ipynb"
    for version in (text, text.replace("A wrong sum", "An untrue sum")):
        renewal.renew(mine, {LESSON: version}, is_open=lambda path: True)
    assert "A wrong sum" in sources(beside)
    second = mine / "notebooks/00_toy.new-2.ipynb"
    assert "An untrue sum" in sources(second)
    notebook = nbformat.read(second, as_version=4)
    code = next(cell for cell in notebook.cells if cell.cell_type == "code")
    code.outputs = [nbformat.v4.new_output("stream", text="42")]
    nbformat.write(notebook, second)
    renewal.renew(mine, {LESSON: text.replace("A wrong sum", "A false sum")})
    assert "A false sum" in sources(mine / LESSON)
    assert "An untrue sum" in sources(second)


def test_a_copy_in_which_somebody_has_worked_stays(course, mine):
    """
    A copy beside an open notebook in which a learner has run cells stays after the next start.
    """
    change(course)
    update(course.with_name("other"), course)
    files = {LESSON: (course.with_name("other") / LESSON).read_text()}
    renewal.renew(mine, files, is_open=lambda path: True)
    beside = mine / "notebooks/00_toy.new.ipynb"
    edit_notebook(beside, GUESS, GUESS.replace("...", "41"))
    before = beside.read_bytes()
    assert update(mine, course).renewed == [LESSON]
    assert beside.read_bytes() == before
