"""
The outputs that lesson 09 shows where a launcher is missing come from a real run.
"""

import pytest
from paths import ROOT

from ddp_lessons.course.notebooks.canonical import read_notebook
from ddp_lessons.errors import BadInput
from ddp_lessons.launch.stored import STORED, stored_output

EXECUTED = ROOT / "notebooks" / "executed" / "09_launch.ipynb"


def printed_by_cells():
    """
    Return the printed text of each code cell of the stored notebook.
    """
    cells = [cell for cell in read_notebook(EXECUTED).cells if cell.cell_type == "code"]
    return ["".join(out.get("text", "") for out in cell.outputs) for cell in cells]


@pytest.mark.parametrize("command", STORED)
def test_what_is_stored_was_printed(command):
    """
    Each stored output is in the executed notebook, so a rebuild of the lesson shows which outputs
    to update.
    """
    texts = [text for text in printed_by_cells() if STORED[command] in text]
    assert len(texts) == 1, f"the notebook has not printed: {STORED[command]}"


def test_stored_output_is_plainly_marked():
    """
    Stored output is marked as such, so that no learner takes it for their own run.
    """
    first, *lines = stored_output("sbatch").splitlines()
    assert first.startswith("sbatch is not here.")
    assert [line.removeprefix("  stored | ") for line in lines] == STORED["sbatch"].splitlines()
    with pytest.raises(BadInput, match="got 'qsub'"):
        stored_output("qsub")
