"""
Starters: the notebooks that learners open, with gaps in place of solutions.
"""

import nbformat
from toy_lesson import make_course

from ddp_lessons.course.notebooks.notebook_paths import all_notebooks, find_root
from ddp_lessons.course.notebooks.starters import blank_of, blank_to_open, read_blank

SOLVED = """\
def script(net):
    # solution
    # | model = wrong(net)
    # | if model:
    # |     return model
    return right(net)
    # end of solution
"""
BLANK = """\
def script(net):
    raise NotImplementedError("Task 06.4 is still blank")
    model = wrong(net)
    if model:
        return model"""


def test_blank_of_a_broken_script_holds_what_is_to_be_mended():
    """
    A starter for a task that repairs code shows the broken code, after the line that raises.
    """
    places = all_notebooks(find_root(__file__.rpartition("/")[0]))
    place = next(place for place in places if not place.is_lesson)
    cells = [
        nbformat.v4.new_markdown_cell("## 06.4 Mend a script"),
        nbformat.v4.new_code_cell(SOLVED),
    ]
    blank = blank_of(place, nbformat.v4.new_notebook(cells=cells))
    assert blank["cells"][1]["source"] == BLANK


def test_the_answer_to_a_prediction_is_folded():
    """
    The `read` cells after a prediction, the section's check and a cell marked `answer` are folded,
    and nothing else: a learner must see what comes before the guess, and the section's code.
    """
    places = all_notebooks(find_root(__file__.rpartition("/")[0]))
    place = next(place for place in places if place.is_lesson)
    asked = ["question", "predict", "run", "read", "mend", "read", "check", "explain answer"]
    roles = ["why", "question", "run", "read", "check", *asked, "question", "run", "read", "check"]
    cells = [
        nbformat.v4.new_markdown_cell(str(number), metadata={"tags": role.split()})
        for number, role in enumerate(roles)
    ]
    lesson = nbformat.v4.new_notebook(cells=cells)
    folded = [cell.source for cell in blank_of(place, lesson).cells if "jupyter" in cell.metadata]
    assert folded == ["8", "10", "11", "12"]
    older = nbformat.v4.new_notebook(cells=lesson.cells[1:])
    assert not any("jupyter" in cell.metadata for cell in blank_of(place, older).cells)


def test_the_course_keeps_its_own_blank_the_same_under_every_python(tmp_path):
    """
    A starter in the course's own folder is the same under every Python, so that a developer who
    resets it sees no difference in git.
    """
    place = make_course(tmp_path / "course")
    assert blank_to_open(place, place.blank) == read_blank(place)
    copied = blank_to_open(place, tmp_path / "mine.ipynb")
    assert copied.metadata != read_blank(place).metadata
    assert copied.cells == read_blank(place).cells
