"""
Tests that run every lesson in a real browser, and take screenshots of it in both themes.
"""

import pytest
from lab_server import ROOT

from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.course.notebooks.cell_roles import RAISES, tags_of
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks

pytestmark = [pytest.mark.timeout(300)]

LESSONS = [place for place in all_notebooks(ROOT) if place.is_lesson]


@pytest.mark.parametrize("place", LESSONS, ids=lambda place: place.stem)
def test_run_all_ends_without_an_error_that_is_not_meant(lab, place):
    """
    Run All Cells runs a whole lesson, only the intended cells fail, and no output is cut off in
    either theme.
    """
    cells = [cell for cell in read_notebook(place.notebook).cells if cell.cell_type == "code"]
    meant = [number for number, cell in enumerate(cells) if RAISES in tags_of(cell)]
    lab.open_file(f"notebooks/{place.notebook.name}")
    lab.run_all(until=len(cells) - 1)
    assert lab.prompts() == [f"[{n}]:" for n in range(1, len(cells) + 1)]
    ran = lab.save(place.notebook.name)
    outputs = [cell.outputs for cell in ran.cells if cell.cell_type == "code"]
    failed = [n for n, shown in enumerate(outputs) if any(o.output_type == "error" for o in shown)]
    assert failed == meant
    assert all(width > 50 and height > 50 for _, width, height in lab.pictures())
    lab.use_theme("JupyterLab Light")  # the server stores the last test's theme
    assert lab.photograph(f"{place.stem}_light") == []
    lab.use_theme("JupyterLab Dark")
    assert lab.photograph(f"{place.stem}_dark") == []
    assert lab.questions() == []
