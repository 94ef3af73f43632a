"""
A check restores each function of torch that it has replaced, even if it is interrupted.
"""

import types

import pytest

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.checks.kit.on_rank.patching import patched, restore_patched
from ddp_lessons.ranks.kernel.cells import run_cell


@pytest.fixture
def module():
    """
    Return a module with two names.
    """
    module = types.ModuleType("made_up")
    module.first, module.second = 1, 2
    return module


def test_names_hold_other_values_for_a_while_only(module):
    """
    The names of a module are restored, also after an error.
    """
    seen = []

    def fails():
        with patched(module, first="other", second="another"):
            seen.append((module.first, module.second))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert seen == [("other", "another")]
    assert (module.first, module.second) == (1, 2)


def test_who_gives_back_leaves_what_was_lent_out_before(module):
    """
    `patched` restores only its own names, because a task may replace something while its check
    has replaced something else.
    """
    with patched(module, first="other"):
        with patched(module, second="another"):
            pass
        assert (module.first, module.second) == ("other", 2)
    assert (module.first, module.second) == (1, 2)


def test_what_an_interrupt_left_replaced_is_given_back_by_who_comes_next(module):
    """
    Names that an interrupt left replaced are restored by the next `restore_patched`: a rank that is
    released is interrupted wherever it is.
    """
    interrupted = patched(module, first="other")
    interrupted.__enter__()
    assert module.first == "other"
    restore_patched()
    assert module.first == 1
    restore_patched()
    assert module.first == 1


def test_ranks_leave_their_group_though_torchs_function_for_it_is_replaced():
    """
    Ranks can leave their group and join the next one although a learner's mock has replaced
    `destroy_process_group`.
    """
    ranks = start_ranks(2)
    try:
        mock = "from unittest.mock import Mock\nimport torch.distributed as dist\n"
        run_cell(ranks, mock + "kept, dist.destroy_process_group = dist.get_rank(), Mock()")
        ranks.recover()
        run_cell(ranks, "import torch\nsum_ = torch.ones(1)\ndist.all_reduce(sum_)")
        run_cell(ranks, "assert sum_.item() == 2")
        assert ranks.view["kept"] == [0, 1]
    finally:
        stop_ranks()
