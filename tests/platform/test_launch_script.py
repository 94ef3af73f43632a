"""
A test that the script of lesson 09 gives bitwise the same losses as the notebook's ranks.
"""

import os

import pytest
from paths import ROOT

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.course.notebooks.cell_roles import SCRIPT, tags_of
from ddp_lessons.course.notebooks.script import script_of
from ddp_lessons.course.notebooks.text_twins import read_twin
from ddp_lessons.launch import is_here
from ddp_lessons.launch.example import num_different, start_by
from ddp_lessons.ranks.kernel.cells import run_cell

TWIN = ROOT / "notebooks" / "py" / "09_launch.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """
    Return a folder with the script, and with the losses of two ranks that have run its cells.
    """
    folder, notebook = tmp_path_factory.mktemp("out"), read_twin(TWIN)
    (folder / "train.py").write_text(script_of(notebook, TWIN.stem))
    cells = [cell["source"] for cell in notebook["cells"] if SCRIPT in tags_of(cell)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUT", str(folder))
        ranks = start_ranks(2, device="cpu")
        for cell in cells:
            run_cell(ranks, cell.removeprefix("%%px\n"))
        stop_ranks()
    return folder


@pytest.mark.bitwise
@pytest.mark.parametrize("launcher", ["torchrun", "spawn", "mpiexec", "srun"])
def test_cells_and_their_script_train_alike(launcher, folder):
    """
    Under each launcher the script gives bitwise the losses of its cells: a launcher does not change
    the results.
    """
    if not is_here(launcher, os.environ):
        pytest.skip(f"no {launcher} on this machine")
    job = start_by(launcher, folder)
    assert job.wait(90) == 0, job.stderr
    assert num_different(folder, launcher) == 0
