"""
Tests that lesson 16 shows outputs of a real run where a framework is not installed.
"""

import re

import nbformat
import pytest
from paths import ROOT

from ddp_lessons.checks.frameworks import material
from ddp_lessons.course.building.build import run_notebook
from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.errors import BadInput
from ddp_lessons.frameworks import stored as module
from ddp_lessons.frameworks.stored import FRAMEWORKS, is_here, real_or_stored, stored

DEADLINE_S = 100


def be_rank(monkeypatch, rank, world_size):
    """
    Make this process a rank of a world in which no framework is installed.
    """
    monkeypatch.setattr(module.dist, "get_world_size", lambda: world_size)
    monkeypatch.setattr(module.dist, "get_rank", lambda: rank)
    monkeypatch.setattr(module, "is_here", lambda name: False)


def test_a_run_is_real_where_its_framework_is(monkeypatch):
    """
    With the framework installed the function is called, and no stored result is used.
    """
    monkeypatch.setattr(module, "is_here", lambda name: True)
    assert real_or_stored("Accelerate, told", lambda: ["real"]) == ["real"]
    with pytest.raises(BadInput, match="got 'nothing'"):
        real_or_stored("nothing", list)


def test_what_is_stored_is_plainly_marked(monkeypatch, capsys):
    """
    Without the framework each rank gets the result of its number, and one line says that the
    results are stored.
    """
    for rank in range(4):
        be_rank(monkeypatch, rank, 4)
        found = real_or_stored("no sampler, and prepare", list)
        assert found[0] == [4 * rank, 4 * rank + 1, 4 * rank + 2, 4 * rank + 3]
    told = (
        "stored | Accelerate is not installed here, and this came out where it is: "
        "pip install 'ddp-lessons[frameworks]'\n"
    )
    assert capsys.readouterr().out == told  # printed once, by rank 0


def test_what_is_stored_fits_as_many_ranks(monkeypatch):
    """
    Stored results are refused in a world of another size: those of 4 ranks would be wrong for 3.
    """
    be_rank(monkeypatch, 2, 3)
    with pytest.raises(BadInput, match="expected 4 ranks"):
        real_or_stored("Accelerate, told", list)


@pytest.mark.parametrize("num_here", [0, 1])
def test_checks_say_what_to_install(monkeypatch, num_here):
    """
    A check without its frameworks names the missing ones and how to install them. The first task
    needs either framework, the second task both.
    """
    here = list(FRAMEWORKS)[:num_here]
    monkeypatch.setattr(material, "is_here", lambda module: module in here)
    warm_up = material.warm_up_all if num_here else material.warm_up_one
    with pytest.raises(BadInput, match=r"got (Accelerate|neither)\)\. Run pip install"):
        warm_up()


def test_a_framework_that_is_not_installed_is_not_here():
    """
    `is_here` is false for a framework that is not installed.
    """
    assert not is_here("no_such_framework")


def printed(notebook):
    """
    Return the text that each cell has printed, without the lines that mark stored results.
    """
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    texts = ["".join(out.get("text", "") for out in cell.outputs) for cell in cells]
    return [re.sub(r"^(\[\d\] )?stored \| .*\n", "", text, flags=re.MULTILINE) for text in texts]


def test_lesson_shows_the_same_without_the_frameworks(tmp_path):
    """
    Without the frameworks the lesson prints the same outputs, and says which are stored.
    """
    blank = ROOT / "notebooks" / "16_frameworks.ipynb"
    text = nbformat.writes(read_notebook(blank))
    # An import of a framework finds None in sys.modules, and raises.
    hidden = "import sys\nfrom ddp_lessons.frameworks import stored\n"
    hidden += f"sys.modules |= dict.fromkeys({list(FRAMEWORKS)})\n"
    hidden += "stored.is_here = lambda module: False"
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
