"""
Tests of every notebook: it equals its text twin, keeps the rules, and gives its outputs again.
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
    Each notebook has both files, its text twin and the notebook built from it.
    """
    assert place.text.is_file()
    assert place.notebook.is_file()


@every_notebook
def test_notebook_equals_its_text(place):
    """
    A notebook equals its text twin, because people review the twin and learners open the notebook.
    """
    refuse_unequal(place, read_notebook(place.notebook))


@every_notebook
def test_notebook_keeps_the_rules(place):
    """
    A stored notebook keeps all rules, even if it was edited and saved after it was built.
    """
    notebook = read_notebook(place.notebook)
    options = {"is_lesson": place.is_lesson, "machine_paths": machine_paths()}
    rules.refuse(place.notebook.name, rules.findings(notebook, **options))


@every_notebook
def test_notebook_is_canonical(place):
    """
    A stored notebook has the bytes that `build` would write: any other byte is an accidental
    difference.
    """
    text = place.notebook.read_text(encoding="utf-8")
    assert dumps(canonical(read_notebook(place.notebook), place.stem)) == text


@every_notebook
def test_what_learners_open_is_what_the_text_makes_of_it(place):
    """
    The starter is made from the reviewed text twin, with every gap in its place and without
    outputs.
    """
    assert place.blank.read_text(encoding="utf-8") == dumps(read_blank(place))


@every_lesson
def test_lesson_with_outputs_is_the_lesson_that_learners_open(place):
    """
    A lesson with outputs has the same cells as its starter, apart from links, because it lies one
    folder deeper, and from the starter's folded answers.
    """
    learners, executed = read_notebook(place.blank), read_notebook(place.notebook)
    for cell in learners.cells:
        cell.metadata.pop("jupyter", None)
    assert content(one_folder_down(learners)) == content(executed)
    assert not any(cell.get("outputs") for cell in learners.cells)


@pytest.mark.whole_notebook
@pytest.mark.timeout(NOTEBOOK_LIMIT_S + 60)
@every_lesson
def test_lesson_comes_out_again(place):
    """
    A lesson that runs again gives its stored outputs.
    """
    verify(place, cell_timeout_s=CELL_LIMIT_S, deadline_s=NOTEBOOK_LIMIT_S)


def test_notebook_with_one_character_altered_fails(tmp_path, capfd):
    """
    One wrong character in the first compared output of a real lesson fails its verification.
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
    # Return the code up to the first compared output after the setup: more would only cost time.
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    last = next(i for i, cell in enumerate(cells) if _compared_stream(cell))
    return nbformat.v4.new_notebook(cells=cells[: last + 1])


def _compared_stream(cell):
    streams = [output for output in cell.outputs if output.output_type == "stream"]
    return streams[0] if streams and not {IGNORED, "setup"} & set(tags_of(cell)) else None
