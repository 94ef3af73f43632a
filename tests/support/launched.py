"""
Helpers for the tests of ranks under a launcher: its configuration, and the checks after a fault.
"""

import re
import time

import pytest
from paths import ROOT

from ddp_lessons.ranks.kernel.cells import run_cell

PROMPT_S = 30.0
"""
Seconds within which a cell must fail. This limit is no promise, because test machines are crowded,
but it is far below the time limits of groups and jobs.
"""
DOCS = ROOT / "docs"


def blocks(page, language):
    """
    Return the code blocks of a page in `docs/`, as a learner copies them.
    """
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def configure(patch, home, text):
    """
    Write ipyparallel's configuration into an IPython folder, and make IPython use that folder.
    """
    profile = home / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipcluster_config.py").write_text(f"c = get_config()\n{text}")
    patch.setenv("IPYTHONDIR", str(home))


def prepare(ranks):
    """
    Define on each rank a variable that must survive faults, and the names that the tests' cells
    use.
    """
    ranks.view.execute("import os, signal, time, torch, torch.distributed as dist")
    ranks.view.execute("mine, one = dist.get_rank(), torch.ones(1)")


def assert_in_order(ranks, kept):
    """
    Assert that the next collective works, and that the ranks in `kept` still have their variables.
    """
    run_cell(ranks, "import os, signal, time, torch, torch.distributed as dist")
    run_cell(ranks, "one = torch.ones(1)\nthere = torch.ones(1)\ndist.all_reduce(there)")
    run_cell(ranks, "num_there = int(there.item())")
    assert ranks.view["num_there"] == [len(ranks)] * len(ranks)
    assert [ranks[rank]["mine"] for rank in kept] == list(kept)


def failing(ranks, source, error, match, within_s=PROMPT_S):
    """
    Run a cell that must fail soon, and return the message that the learner sees.
    """
    began = time.monotonic()
    with pytest.raises(error, match=match) as caught:
        run_cell(ranks, source)
    seconds = time.monotonic() - began
    assert seconds < within_s, f"{seconds:.1f} s: {caught.value}"
    return str(caught.value)
