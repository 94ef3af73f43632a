"""
Imports that take seconds are done before the clock of a check starts.
"""

from dataclasses import replace

import pytest
from bank import all_answers
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.checks.kit import checking
from ddp_lessons.checks.kit.shared.warm_up import first_save
from ddp_lessons.checks.kit.task_registry import find_task
from ddp_lessons.ranks.kernel.cells import run_cell

MOST_MODULES = 50
"""
The most modules that may be imported while the clock runs: they take at most 0.1 s. torch's
compiler has 800.
"""
RIGHT = "import torch.distributed as dist\nmy_items = lambda items: items[dist.get_rank() :: "


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """
    Start two ranks, once for all tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_LESSONS_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield start_ranks(2)
        stop_ranks()


@pytest.fixture
def ranks(two_ranks):
    """
    Return the ranks with new processes, which have imported and saved nothing yet.
    """
    two_ranks.engines.kill_stuck([0, 1])
    wait_until(lambda: two_ranks.dead == [0, 1], HANGS_AFTER_S, "the end of both processes")
    two_ranks.recover()
    return two_ranks


def are_warm(ranks):
    """
    Return for each rank whether it has imported the module that the first sharded save imports.
    """
    run_cell(ranks, "import sys\nis_warm = 'torch._dynamo' in sys.modules")
    return ranks.view["is_warm"]


def test_ranks_warm_up_before_the_clock_starts(ranks, monkeypatch):
    """
    The warm-up comes before the clock starts, because on a busy machine torch's imports alone may
    take longer than an answer may.
    """
    at_start, make_run = [], checking.CheckRun

    def run(task, its_ranks, *rest):
        at_start.append(are_warm(its_ranks))
        return make_run(task, its_ranks, *rest)

    monkeypatch.setattr(checking, "CheckRun", run)
    task = find_task("00.1")
    run_cell(ranks, f"{RIGHT}dist.get_world_size()]")
    for one in (task, replace(task, warm_up=first_save)):
        checking.run_and_judge(one, ranks)
    assert at_start == [[False, False], [True, True]]


def num_modules(ranks):
    """
    Return the number of modules on the rank that has imported most.
    """
    run_cell(ranks, "import sys\nnum_modules = len(sys.modules)")
    return max(ranks.view["num_modules"])


@pytest.mark.parametrize("number", ["09.2", "13.2", "13.4", "14.1", "15.1", "15.2", "15.3"])
def test_right_answer_imports_little_while_its_clock_runs(ranks, monkeypatch, number):
    """
    A right answer imports few modules while its clock runs. A first optimizer, dispatch mode or
    device mesh would import torch's compiler: 800 modules.
    """
    at_start, make_run = [], checking.CheckRun

    def run(task, its_ranks, *rest):
        at_start.append(num_modules(its_ranks))
        return make_run(task, its_ranks, *rest)

    monkeypatch.setattr(checking, "CheckRun", run)
    answer = next(one for one in all_answers() if one.task == number and one.mistake is None)
    run_cell(ranks, answer.source)
    checking.run_and_judge(find_task(number), ranks)
    assert num_modules(ranks) - at_start[0] < MOST_MODULES
