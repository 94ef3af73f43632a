"""
What lesson 16 shows where a framework is missing came out of a real run.
"""

import re
from pathlib import Path

import nbformat
import pytest

from ddp_lessons.course.making.build import run_notebook
from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.errors import BadInput
from ddp_lessons.frameworks import stored as module
from ddp_lessons.frameworks.stored import FRAMEWORKS, is_here, real_or_stored, stored

ROOT = Path(__file__).parents[1]
DEADLINE_S = 100


@pytest.fixture
def _three_ranks(monkeypatch):
    monkeypatch.setattr(module.dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(module.dist, "get_rank", lambda: 2)


def test_a_run_is_real_where_its_framework_is(monkeypatch):
    """
    What is stored is for those who cannot run it.
    """
    monkeypatch.setattr(module, "is_here", lambda name: True)
    assert real_or_stored("Accelerate, told", lambda: ["real"]) == ["real"]
    with pytest.raises(BadInput, match="got 'nothing'"):
        real_or_stored("nothing", list)


@pytest.mark.usefixtures("_three_ranks")
def test_what_is_stored_fits_as_many_ranks(monkeypatch):
    """
    Results of 4 ranks would be wrong ones for 3.
    """
    monkeypatch.setattr(module, "is_here", lambda name: False)
    with pytest.raises(BadInput, match="expected 4 ranks"):
        real_or_stored("Accelerate, told", list)


def test_a_framework_that_is_not_installed_is_not_here():
    """
    It is asked for without importing it.
    """
    assert not is_here("no_such_framework")


def printed(notebook):
    """
    Return what each cell has printed, but the lines that say that it is stored.
    """
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    texts = ["".join(out.get("text", "") for out in cell.outputs) for cell in cells]
    return [re.sub(r"^(\[\d\] )?stored \| .*\n", "", text, flags=re.MULTILINE) for text in texts]


@pytest.mark.ranks
@pytest.mark.notebooks
def test_lesson_shows_the_same_without_the_frameworks(tmp_path, monkeypatch):
    """
    A learner who may not install them sees what others have seen, and reads that it is stored.
    """
    for name in FRAMEWORKS:
        fake = tmp_path / "without" / name
        fake.parent.mkdir(exist_ok=True)
        fake.with_suffix(".py").write_text("raise RuntimeError('this one is not here')\n")
    blank = ROOT / "notebooks" / "16_frameworks.ipynb"
    text = nbformat.writes(read_notebook(blank))
    # `is_here` must not find them; whoever imports them nevertheless gets the fake, which raises.
    hidden = "import importlib.util as u\nfrom ddp_lessons.frameworks import stored as s\n"
    hidden += "s.is_here = lambda module: False"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'without'}:{ROOT}")
    notebook = nbformat.reads(text, as_version=4)
    first = next(c for c in notebook.cells if "import num_models" in c.source)
    first.source = first.source.replace("%%px\n", f"%%px\n{hidden}\n")
    path = tmp_path / blank.name
    nbformat.write(notebook, path)
    assert run_notebook(path, ROOT / "notebooks", deadline_s=DEADLINE_S) == 0
    ran = nbformat.read(path, as_version=4)
    assert not [out for c in ran.cells for out in c.get("outputs", ()) if "ename" in out]
    executed = read_notebook(ROOT / "notebooks" / "executed" / blank.name)
    assert printed(ran)[1:] == printed(executed)[1:]
    told = "".join(out.get("text", "") for c in ran.cells for out in c.get("outputs", ()))
    assert told.count("stored | ") == len(stored())
