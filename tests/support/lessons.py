"""
The lessons, as tests read them: their notebooks, their titles, and the sources of their cells.
"""

import re

from paths import ROOT

from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.course.notebooks.cell_roles import role_of
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks

NOTEBOOKS = {
    place.stem: read_notebook(place.blank) for place in all_notebooks(ROOT) if place.is_lesson
}
STEMS = sorted(path.stem for path in (ROOT / "notebooks" / "py").glob("*.py"))
TITLE = re.compile(
    r"# (?P<question>[^\n]+\?)\n\n(?P<minutes>\d+) minutes, [24] ranks"
    r"(?P<any>; works with any number of ranks from 2)?\. (?P<builds>[^\n].*)",
    re.DOTALL,
)

CELL_LIMIT_S, NOTEBOOK_LIMIT_S = 180.0, 600.0
"""
Limits for a cell and for a whole notebook that runs beside other tests on a slow machine. They end
a hang.
"""


def sources(stem, *roles):
    """
    Return the sources of a lesson's cells, or only of the cells that have one of the roles.
    """
    return [
        cell["source"] for cell in NOTEBOOKS[stem]["cells"] if not roles or role_of(cell) in roles
    ]


def title_of(stem):
    """
    Return the match of TITLE in a lesson's first cell.
    """
    match = TITLE.match(sources(stem, "title")[0])
    assert match, f"{stem}: a title says its question, its minutes, its ranks, what it builds on"
    return match
