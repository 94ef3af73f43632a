"""
What takes seconds the first time is done before the clock of a check starts.
"""

from dataclasses import replace

import pytest

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.checks.kit import checking
from ddp_lessons.checks.kit.finding import find_task
from ddp_lessons.checks.kit.material.warm_up import first_save
from ddp_lessons.ranks.kernel.cells import run_cell

RIGHT = "import torch.distributed as dist\nmy_items = lambda items: items[dist.get_rank() :: "


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """
    Ranks that have saved nothing yet.
    """
    monkeypatch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path))
    yield start_ranks(2)
    stop_ranks()


def are_warm(ranks):
    """
    Tell for each rank whether it has what the first save in shards imports.
    """
    run_cell(ranks, "import sys\nis_warm = 'torch._dynamo' in sys.modules")
    return ranks.view["is_warm"]


def test_ranks_warm_up_before_the_clock_starts(ranks, monkeypatch):
    """
    On a busy machine torch's imports alone may take longer than an answer may.
    """
    at_start, make_run = [], checking.Run

    def run(task, its_ranks, *rest):
        at_start.append(are_warm(its_ranks))
        return make_run(task, its_ranks, *rest)

    monkeypatch.setattr(checking, "Run", run)
    task = find_task("00.1")
    run_cell(ranks, f"{RIGHT}dist.get_world_size()]")
    for one in (task, replace(task, warm_up=first_save)):
        checking.run_and_judge(one, ranks)
    assert at_start == [[False, False], [True, True]]
