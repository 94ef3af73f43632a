"""
A test of a rank's memory before and after training: thirty learners share one server's memory.
"""

from pathlib import Path

import nbformat
import pytest
import torch
from kernels import running_kernel
from paths import ROOT

LESSON = ROOT / "notebooks" / "00_ranks.ipynb"
CUDA_MIB = 30 if torch.version.cuda else 0
"""
Additional memory of each rank with a CUDA build of torch: an idle rank holds 82 MiB in place of 53.
"""
IDLE_MIB = 80 + CUDA_MIB
TRAINED_MIB = 120 + CUDA_MIB
LOADED = "[name for name in ('torch._dynamo', 'sklearn', 'scipy', 'debugpy') if name in modules]"


def cells_up_to_training():
    """
    Return the code cells of lesson 00, up to the one that trains.
    """
    notebook = nbformat.read(LESSON, as_version=4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    last = next(i for i, cell in enumerate(cells) if "optimizer.step()" in cell)
    return cells[: last + 1]


def pss_mib(pid):
    """
    Return the proportional set size of a process: each shared page is divided by its number of
    users.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells, others not")
def test_a_rank_is_light_before_and_after_it_has_trained():
    """
    A rank stays below its memory limits and loads no needless library. Imports of torch's compiler,
    scikit-learn and a debugger once tripled a rank's memory, so a server could hold fewer learners.
    """
    start, *others = cells_up_to_training()
    with running_kernel() as kernel:
        assert kernel.run(f"{start}\nfrom os import getpid").status == "ok"
        pids = kernel.value("ranks.view.apply_sync(getpid)")
        assert max(map(pss_mib, pids)) < IDLE_MIB
        for cell in others:
            assert kernel.run(cell).status == "ok", cell
        assert max(map(pss_mib, pids)) < TRAINED_MIB
        kernel.run(f"%%px\nfrom sys import modules\nloaded = {LOADED}")
        assert kernel.value("ranks.view['loaded']") == [[]] * len(pids)
