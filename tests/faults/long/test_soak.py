"""
Tests that run every lesson repeatedly: three times in a row, on busy cores, and on 2 ranks.
"""

import copy
import re

import nbformat
import pytest
from fault_tools import busy_cores
from lessons import NOTEBOOKS, STEMS, title_of
from paths import ROOT

from ddp_lessons.course import rules
from ddp_lessons.course.building.build import run_notebook
from ddp_lessons.course.building.verify import verify
from ddp_lessons.course.notebooks.notebook_paths import choose

DEADLINE_S = 240.0
ANY_NUMBER = [stem for stem in STEMS if title_of(stem)["any"]]

pytestmark = [pytest.mark.timeout(3 * DEADLINE_S)]


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("stem", STEMS)
def test_lesson_comes_out_three_times_in_a_row(stem, turn):
    """
    Three runs in a row give the stored outputs: a result that is right by luck would differ in one.
    """
    (paths,) = [paths for paths in choose(ROOT, [stem]) if paths.is_lesson]
    verify(paths, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("stem", STEMS)
def test_lesson_comes_out_while_the_cores_are_busy(stem):
    """
    A lesson gives its stored outputs on busy cores, as on a server that thirty learners share.
    """
    (paths,) = [paths for paths in choose(ROOT, [stem]) if paths.is_lesson]
    with busy_cores():
        verify(paths, deadline_s=DEADLINE_S)


@pytest.mark.parametrize("stem", STEMS)
def test_every_cell_may_be_run_twice(tmp_path, stem):
    """
    Each cell can be run twice, as learners do: only the cells that are meant to fail raise an
    error.
    """
    twice = copy.deepcopy(NOTEBOOKS[stem])
    twice.cells = [again for cell in twice.cells for again in (cell, copy.deepcopy(cell))]
    for number, cell in enumerate(twice.cells):
        cell.id = f"cell-{number}"
    notebook = tmp_path / f"{stem}.ipynb"
    nbformat.write(twice, notebook)
    assert run_notebook(notebook, ROOT / "notebooks", deadline_s=DEADLINE_S) == 0
    assert unmeant_errors(nbformat.read(notebook, as_version=4)) == []


def unmeant_errors(ran):
    """
    Return the findings for cells of an executed notebook that failed and were not meant to.
    """
    return [found for found in rules.findings(ran, is_lesson=False) if found.rule == "error"]


@pytest.mark.parametrize("stem", ANY_NUMBER)
def test_lesson_runs_on_two_ranks_where_it_says_so(tmp_path, stem):
    """
    A lesson marked for any number of ranks passes on two, as a learner with two GPUs starts it: its
    numbers differ, and its assertions hold.
    """
    text = nbformat.writes(NOTEBOOKS[stem])
    assert "start_ranks(4)" in text
    notebook = tmp_path / f"{stem}.ipynb"
    notebook.write_text(text.replace("start_ranks(4)", "start_ranks(2)"), encoding="utf-8")
    assert run_notebook(notebook, ROOT / "notebooks", deadline_s=DEADLINE_S) == 0
    ran = nbformat.read(notebook, as_version=4)
    assert unmeant_errors(ran) == []
    outputs = [output.get("text", "") for cell in ran.cells for output in cell.get("outputs", ())]
    assert re.search(r"\[1\] ", "\n".join(outputs))
    assert not re.search(r"\[[23]\] ", "\n".join(outputs))
