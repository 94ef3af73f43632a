"""
A notebook and its text twin always have the same content.
"""

import pytest
from paths import ROOT
from toy_lesson import TEXT, make_course, run_notebook

from ddp_lessons.course.notebooks.notebook_paths import all_notebooks
from ddp_lessons.course.notebooks.text_twins import (
    content,
    read_twin,
    refuse_unequal,
    twin_of,
    twin_text,
)
from ddp_lessons.errors import NotebookRefused


def test_read_twin_keeps_tags_and_translates_magics(tmp_path):
    """
    A text twin is Python that a linter can read. Its tags are kept, and its commented magics become
    magics.
    """
    text = '# %% tags=["run", "raises-exception"]\n# %%px --targets 0\nx = 3\n# !ls\n'
    cell = read_twin(make_course(tmp_path, text).text)["cells"][0]
    assert cell["metadata"]["tags"] == ["run", "raises-exception"]
    assert cell["source"] == "%%px --targets 0\nx = 3\n!ls"


@pytest.mark.parametrize("comment", ["# cat the pieces", "# rm what is old", "# why?", "# ls"])
def test_read_twin_refuses_a_comment_that_would_run(tmp_path, comment):
    """
    A comment that jupytext would take for a shell command, and uncomment, is refused.
    """
    place = make_course(tmp_path, f"# %% [markdown]\n# Text.\n\n# %%\nx = 3\n{comment}\n")
    with pytest.raises(NotebookRefused, match=r"^00_toy\.py, cell 2, comment: .*would be run"):
        read_twin(place.text)


def test_read_twin_lets_shell_cells_and_comments_pass(tmp_path):
    """
    Shell cells and ordinary comments pass.
    """
    text = "# %%\n# %%bash\n# ls\n# cat x\n\n# %%\n# the cat sat\nx = 3  # ls\n"
    sources = [cell["source"] for cell in read_twin(make_course(tmp_path, text).text)["cells"]]
    assert sources == ["%%bash\nls\ncat x", "# the cat sat\nx = 3  # ls"]


def test_read_twin_missing(tmp_path):
    """
    A missing text twin is reported, because a notebook without one cannot be reviewed.
    """
    place = make_course(tmp_path)
    place.text.unlink()
    with pytest.raises(NotebookRefused, match=r"00_toy\.py, no twin"):
        read_twin(place.text)


def test_refuse_unequal_ignores_outputs_only(tmp_path):
    """
    Only outputs may differ, because the text twin holds none.
    """
    notebook, place = run_notebook(tmp_path), make_course(tmp_path)
    assert len(content(notebook)) == len(notebook["cells"])
    refuse_unequal(place, notebook)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (TEXT.replace("print(41)", "print(40)"), 8),
        (TEXT.replace('tags=["run"]', 'tags=["run", "nbval-ignore-output"]', 1), 8),
        (TEXT.replace('[markdown] tags=["recap"]', 'tags=["recap"]'), 25),
        (TEXT.replace("minutes=[8, 12]", "minutes=[8, 11]"), 1),
        (TEXT.replace('tags=["check"]', 'tags=["check"] jupyter={"source_hidden": true}', 1), 10),
        (TEXT + "\n# %%\nx = 4\n", 28),
    ],
)
def test_refuse_unequal_names_the_first_cell(tmp_path, text, number):
    """
    The first cell that differs is named, so that an author who edits one of the two files finds the
    difference.
    """
    notebook, place = run_notebook(tmp_path), make_course(tmp_path, text)
    with pytest.raises(NotebookRefused, match=rf"cell {number}, twin: .*build 00_toy"):
        refuse_unequal(place, notebook)


def test_every_twin_is_the_same_after_a_way_through_a_notebook():
    """
    A notebook of the course gives the cells of its text twin again, also those with a script's
    first line, "#!/bin/bash": a teacher's edit must not change other cells.
    """
    for paths in all_notebooks(ROOT):
        twin = read_twin(paths.text)
        text = twin_text(paths.text.name, twin)
        assert content(twin_of(paths.text.name, text)) == content(twin)
        assert twin_text(paths.text.name, twin_of(paths.text.name, text)) == text


def test_twin_text_refuses_a_cell_that_its_text_would_change(tmp_path):
    """
    A cell that would be another one when its text is read is refused, as one with a cell's mark.
    """
    notebook = read_twin(make_course(tmp_path).text)
    notebook["cells"][3]["source"] = 'x = 3\n# %% tags=["run"]\ny = 4'
    with pytest.raises(NotebookRefused, match=r"^00_toy\.py, cell 4, twin: .*Write it differently"):
        twin_text("00_toy.py", notebook)
