"""
What learners find where the solution was.
"""

import nbformat

from ddp_lessons.course.notebooks.blanks import blank_of
from ddp_lessons.course.notebooks.places import all_places, find_root

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
    A task may be to mend code: the blank shows it, after the line that raises.
    """
    places = all_places(find_root(__file__.rpartition("/")[0]))
    place = next(place for place in places if not place.is_lesson)
    cells = [
        nbformat.v4.new_markdown_cell("## 06.4 Mend a script"),
        nbformat.v4.new_code_cell(SOLVED),
    ]
    blank = blank_of(place, nbformat.v4.new_notebook(cells=cells))
    assert blank["cells"][1]["source"] == BLANK
