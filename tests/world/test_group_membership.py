"""
A rank releases values before it leaves its group, and can join again after an interrupt.
"""

import gc
import weakref

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.ranks.kernel.cells import run_cell
from ddp_lessons.ranks.rank.group_membership import _empty_frames


class Held:
    """
    A value that a frame holds, such as a DataLoader's iterator.
    """


def test_frames_of_a_traceback_let_go_of_what_they_hold_at_once():
    """
    Frames of a traceback drop their values at once. The garbage collector would end a loader's
    queues before its worker, and wait 5 s for it.
    """
    found = []

    def raises():
        held = Held()
        found.append(weakref.ref(held))
        raise ValueError(held)

    gc.disable()
    try:
        raises()
    except ValueError as error:
        traceback = error.__traceback__
        error.args = ()
    finally:
        gc.enable()
    # IPython reads the local variables of all frames when it renders an error.
    assert "held" in traceback.tb_next.tb_frame.f_locals
    assert found[0]() is not None
    _empty_frames(traceback)
    assert found[0]() is None


def test_ranks_join_anew_though_an_interrupt_has_cut_their_leaving_short():
    """
    A rank that is released while it waits in a subgroup may be interrupted while it leaves its
    group. It can still join the next one.
    """
    ranks = start_ranks(2)
    try:
        run_cell(ranks, "import torch, torch.distributed as dist\nkept = dist.get_rank()")
        run_cell(ranks, "from ddp_lessons.private import process_groups")
        run_cell(ranks, "process_groups.set_default_group(None)")
        run_cell(ranks, "process_groups.group_tables().pg_map.clear()")
        ranks.recover()
        run_cell(ranks, "sum_ = torch.ones(1)\ndist.all_reduce(sum_)\nassert sum_.item() == 2")
        assert ranks.view["kept"] == [0, 1]
    finally:
        stop_ranks()
