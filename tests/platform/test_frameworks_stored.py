"""
What lesson 16 shows where a framework is missing came out of a real run.
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
    Have this process be a rank of a world without the frameworks.
    """
    monkeypatch.setattr(module.dist, "get_world_size", lambda: world_size)
    monkeypatch.setattr(module.dist, "get_rank", lambda: rank)
    monkeypatch.setattr(module, "is_here", lambda name: False)


def test_a_run_is_real_where_its_framework_is(monkeypatch):
    """
    What is stored is for those who cannot run it.
    """
    monkeypatch.setattr(module, "is_here", lambda name: True)
    assert real_or_stored("Accelerate, told", lambda: ["real"]) == ["real"]
    with pytest.raises(BadInput, match="got 'nothing'"):
        real_or_stored("nothing", list)


def test_what_is_stored_is_plainly_marked(monkeypatch, capsys):
    """
    Nobody shall take it for a run of his own; each rank gets what that rank had.
    """
    for rank in range(4):
        be_rank(monkeypatch, rank, 4)
        found = real_or_stored("no sampler, and prepare", list)
        assert found[0] == [4 * rank, 4 * rank + 1, 4 * rank + 2, 4 * rank + 3]
    told = (
        "stored | Accelerate is not installed here, and this came out where it is: "
        "pip install 'ddp-lessons[frameworks]'\n"
    )
    assert capsys.readouterr().out == told  # once, by rank 0


def test_what_is_stored_fits_as_many_ranks(monkeypatch):
    """
    Results of 4 ranks would be wrong ones for 3.
    """
    be_rank(monkeypatch, 2, 3)
    with pytest.raises(BadInput, match="expected 4 ranks"):
        real_or_stored("Accelerate, told", list)


@pytest.mark.parametrize("num_here", [0, 1])
def test_checks_say_what_to_install(monkeypatch, num_here):
    """
    Either framework will do for the first task; the second one compares both with plain DDP.
    """
    here = list(FRAMEWORKS)[:num_here]
    monkeypatch.setattr(material, "is_here", lambda module: module in here)
    warm_up = material.warm_up_all if num_here else material.warm_up_one
    with pytest.raises(BadInput, match=r"got (Accelerate|neither)\)\. Run pip install"):
        warm_up()


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


def test_lesson_shows_the_same_without_the_frameworks(tmp_path):
    """
    A learner who may not install them sees what others have seen, and reads that it is stored.
    """
    blank = ROOT / "notebooks" / "16_frameworks.ipynb"
    text = nbformat.writes(read_notebook(blank))
    # Who imports them nevertheless finds None there, and raises.
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
