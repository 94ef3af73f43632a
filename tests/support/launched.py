"""
What tests of ranks under a launcher share: its configuration, and order after a mishap.
"""

import re
import time

import pytest
from paths import ROOT

from ddp_lessons.ranks.kernel.cells import run_cell

PROMPT_S = 30.0
"""
No promise, but far below the time limits of groups and of jobs: machines of tests are crowded.
"""
DOCS = ROOT / "docs"


def blocks(page, language):
    """
    Return the code blocks of a page of ours, as a learner copies them.
    """
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def configure(patch, home, text):
    """
    Write ipyparallel's configuration into an IPython folder, and have it read.
    """
    profile = home / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipcluster_config.py").write_text(f"c = get_config()\n{text}")
    patch.setenv("IPYTHONDIR", str(home))


def prepare(ranks):
    """
    Give each rank what it keeps, and what cells of tests use.
    """
    ranks.view.execute("import os, signal, time, torch, torch.distributed as dist")
    ranks.view.execute("mine, one = dist.get_rank(), torch.ones(1)")


def assert_in_order(ranks, kept):
    """
    The next collective works, and ranks still have what they had.
    """
    run_cell(ranks, "import os, signal, time, torch, torch.distributed as dist")
    run_cell(ranks, "one = torch.ones(1)\nthere = torch.ones(1)\ndist.all_reduce(there)")
    run_cell(ranks, "num_there = int(there.item())")
    assert ranks.view["num_there"] == [len(ranks)] * len(ranks)
    assert [ranks[rank]["mine"] for rank in kept] == list(kept)


def failing(ranks, source, error, match, within_s=PROMPT_S):
    """
    Run a cell that must fail soon, and return what the learner is told.
    """
    began = time.monotonic()
    with pytest.raises(error, match=match) as caught:
        run_cell(ranks, source)
    seconds = time.monotonic() - began
    assert seconds < within_s, f"{seconds:.1f} s: {caught.value}"
    return str(caught.value)
