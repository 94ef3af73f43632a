"""
Every notebook of the course is what its text says, keeps the rules, and comes out again.
"""

import jupytext
import nbformat
import pytest
from lessons import CELL_LIMIT_S, NOTEBOOK_LIMIT_S
from paths import ROOT
from toy_lesson import make_course

from ddp_lessons.course import rules
from ddp_lessons.course.building.build import machine_paths
from ddp_lessons.course.building.verify import verify
from ddp_lessons.course.notebooks.canonical import canonical, dumps, read_notebook
from ddp_lessons.course.notebooks.cell_roles import IGNORED, tags_of
from ddp_lessons.course.notebooks.notebook_paths import all_notebooks
from ddp_lessons.course.notebooks.starters import read_blank
from ddp_lessons.course.notebooks.text_twins import content, one_folder_down, refuse_unequal
from ddp_lessons.errors import NotebookRefused

PLACES = all_notebooks(ROOT)
LESSONS = [place for place in PLACES if place.is_lesson]


every_notebook = pytest.mark.parametrize(
    "place", [pytest.param(place, id=f"{place.kind}-{place.stem}") for place in PLACES]
)
every_lesson = pytest.mark.parametrize(
    "place", [pytest.param(place, id=place.stem) for place in LESSONS]
)


@every_notebook
def test_notebook_has_text_and_product(place):
    """
    A stem names both files, or one of them was forgotten.
    """
    assert place.text.is_file()
    assert place.notebook.is_file()


@every_notebook
def test_notebook_equals_its_text(place):
    """
    People review the text and learners open the notebook.
    """
    refuse_unequal(place, read_notebook(place.notebook))


@every_notebook
def test_notebook_keeps_the_rules(place):
    """
    A notebook can be edited and saved after it was built.
    """
    notebook = read_notebook(place.notebook)
    options = {"is_lesson": place.is_lesson, "machine_paths": machine_paths()}
    rules.refuse(place.notebook.name, rules.findings(notebook, **options))


@every_notebook
def test_notebook_is_canonical(place):
    """
    Bytes that `build` would not write are a difference that nobody meant.
    """
    text = place.notebook.read_text(encoding="utf-8")
    assert dumps(canonical(read_notebook(place.notebook), place.stem)) == text


@every_notebook
def test_what_learners_open_is_what_the_text_makes_of_it(place):
    """
    Learners run, and fill in, the text that was reviewed: every gap in its place, and no output.
    """
    assert place.blank.read_text(encoding="utf-8") == dumps(read_blank(place))


@every_lesson
def test_lesson_with_outputs_is_the_lesson_that_learners_open(place):
    """
    What one reads on the web is what one runs. Only links differ: it lies one folder further down.
    """
    learners, executed = read_notebook(place.blank), read_notebook(place.notebook)
    assert content(one_folder_down(learners)) == content(executed)
    assert not any(cell.get("outputs") for cell in learners.cells)


@pytest.mark.whole_notebook
@pytest.mark.timeout(NOTEBOOK_LIMIT_S + 60)
@every_lesson
def test_lesson_comes_out_again(place):
    """
    What the course says was run, and runs again.
    """
    verify(place, cell_timeout_s=CELL_LIMIT_S, deadline_s=NOTEBOOK_LIMIT_S)


def test_notebook_with_one_character_altered_fails(tmp_path, capfd):
    """
    The comparison is alive on a real lesson too: its first compared output, one character wrong.
    """
    if not LESSONS:
        pytest.skip("no lesson yet")
    notebook = _beginning(read_notebook(LESSONS[0].notebook))
    stream = _compared_stream(notebook.cells[-1])
    assert stream is not None, "no cell of the lesson prints what is compared"
    stream.text = stream.text[:-2] + ("x" if stream.text[-2] != "x" else "y") + stream.text[-1:]
    text = jupytext.writes(nbformat.from_dict(notebook), fmt="py:percent")
    place = make_course(tmp_path, text, stem=LESSONS[0].stem)
    place.notebook.write_text(dumps(canonical(notebook, place.stem)), encoding="utf-8")
    with pytest.raises(NotebookRefused, match="differs"):
        verify(place)
    shown = capfd.readouterr().out
    assert f"1 failed, {len(notebook.cells) - 1} passed" in shown


def _beginning(notebook):
    # The code up to the first output that is compared after the setup: the rest costs time only.
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    last = next(i for i, cell in enumerate(cells) if _compared_stream(cell))
    return nbformat.v4.new_notebook(cells=cells[: last + 1])


def _compared_stream(cell):
    streams = [output for output in cell.outputs if output.output_type == "stream"]
    return streams[0] if streams and not {IGNORED, "setup"} & set(tags_of(cell)) else None
