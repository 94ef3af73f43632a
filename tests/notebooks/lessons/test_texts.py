"""
Tests of the message at the start of ranks that lessons and package have different versions.
"""

import json

import pytest
from kernels import running_kernel

from ddp_lessons import __version__
from ddp_lessons.course.learner import workspace
from ddp_lessons.course.notebooks.notebook_paths import find_course
from ddp_lessons.ranks.system import version_check

TOLD = (
    "These lessons are of version 0.0.9, and the package is {}: what a cell prints may differ. "
    "Run `ddp-lessons copy` in a terminal, or install the package anew."
)


@pytest.fixture
def mine(tmp_path):
    """
    Return a learner's folder whose lessons have another version than the package.
    """
    workspace.update(tmp_path / "mine", find_course())
    notes = tmp_path / "mine" / workspace.NOTES
    notes.write_text(json.dumps({**json.loads(notes.read_text()), "version": "0.0.9"}))
    return tmp_path / "mine"


def test_texts_of_another_version_are_told_of_until_they_are_brought_up_to_date(mine):
    """
    After an upgrade of the package the message appears until the learner's folder is updated.
    """
    told = TOLD.format(__version__)
    assert version_check.difference(mine / "notebooks") == told
    workspace.update(mine, find_course())
    assert version_check.difference(mine / "notebooks") == ""


def test_texts_of_a_clone_are_told_of(tmp_path):
    """
    In a clone, the version in its own source counts: an nbgitpuller link brings new lessons, and
    the server keeps its package.
    """
    package, notebooks = tmp_path / "ddp_lessons", tmp_path / "notebooks"
    package.mkdir()
    notebooks.mkdir()
    (package / "__init__.py").write_text('"""Doc."""\n\n__version__ = "0.0.9"\n')
    assert version_check.difference(notebooks) == TOLD.format(__version__)
    (package / "__init__.py").write_text(f'__version__ = "{__version__}"\n')
    assert version_check.difference(notebooks) == ""


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "not json"])
def test_texts_of_no_version_are_left_alone(tmp_path, text):
    """
    A folder without a known version causes no message: notebooks may lie anywhere, and the folder
    may be older than this check.
    """
    if text is not None:
        (tmp_path / workspace.NOTES).write_text(text)
    assert version_check.difference(tmp_path) == ""


def test_start_ranks_tells_of_texts_of_another_version(mine):
    """
    start_ranks() prints the message, because it is in the first cell of every lesson, and above it
    the news of a published version.
    """
    notebook, published = mine / "notebooks/00_ranks.ipynb", mine.with_name("published")
    notes = json.loads((mine / workspace.NOTES).read_text())
    (mine / workspace.NOTES).write_text(json.dumps({**notes, "published": str(published)}))
    (published / "notebooks").mkdir(parents=True)
    edited = notebook.read_text().replace("process", "Process")
    (published / "notebooks/00_ranks.ipynb").write_text(edited)
    (published / version_check.PUBLISHED).write_text('{"notebooks/00_ranks.ipynb": "new"}')
    with running_kernel() as kernel:
        kernel.run(f"import os; os.chdir({str(mine / 'notebooks')!r})")
        kernel.run(f"os.environ['JPY_SESSION_NAME'] = {str(notebook)!r}")
        said = kernel.run("from ddp_lessons import start_ranks\nranks = start_ranks(1)").text
        assert said.splitlines()[:2] == [
            "News of the course: notebooks/00_ranks.ipynb: yours is kept, the new one is "
            "notebooks/00_ranks.new.ipynb.",
            TOLD.format(__version__),
        ]
        assert "1 rank ready" in said
