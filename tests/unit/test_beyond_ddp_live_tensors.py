"""
Live memory, as the checks of tasks 15.1 and 15.2 count it: every live tensor counts, whatever holds
it.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ddp_lessons.checks.beyond_ddp import live_tensors as alive_module
from ddp_lessons.checks.beyond_ddp.live_tensors import Alive

NUM_BYTES = 4 * 100


def test_what_autograd_holds_counts():
    """
    Tensors that only autograd holds count, although Python's garbage collector does not see them.
    """
    alive, weight = Alive(math.inf), nn.Parameter(torch.ones(100))
    with alive:
        loss = (weight * torch.ones(100)).sum()
    assert alive.num_bytes([loss]) == NUM_BYTES  # the tensor of ones
    with alive:
        loss.backward()
    assert alive.num_bytes([loss, weight.grad]) == 0


def test_view_counts_with_what_it_is_a_view_of():
    """
    A view counts with its base, because a slice of a weight keeps the whole weight alive.
    """
    alive = Alive(math.inf)
    with alive:
        part = torch.ones(100)[:25]
        copied = torch.ones(100)[:25].clone()
    assert alive.num_bytes([part, copied]) == NUM_BYTES * 3 // 4
    del part
    assert alive.num_bytes([copied]) == 0


def test_what_hides_in_an_object_counts():
    """
    A tensor or NumPy array in a list of an object counts, also if the object has no name in the
    answer.
    """
    alive, keeper = Alive(math.inf), type("Keeper", (), {})()
    with alive:
        keeper.things = [{"weight": torch.ones(100)}, torch.ones(100).numpy()]
    assert alive.num_bytes() == 2 * NUM_BYTES


def test_what_only_waits_to_be_collected_is_gone():
    """
    A tensor in a reference cycle does not count, because Python frees it at a time that the answer
    does not choose.
    """
    alive, keeper = Alive(0), type("Keeper", (), {})()
    with alive:
        keeper.thing, keeper.itself = torch.ones(100), keeper
    del keeper
    assert alive.num_bytes() == 0


def test_storage_that_was_emptied_does_not_count():
    """
    A storage that was resized to 0 does not count, because its memory is released.
    """
    alive = Alive(math.inf)
    with alive:
        whole = torch.ones(100)
    assert alive.num_bytes() == NUM_BYTES
    whole.untyped_storage().resize_(0)
    assert alive.num_bytes() == 0


def test_what_is_too_much_gets_time_to_go_once(monkeypatch):
    """
    Excess memory is counted again after a wait, because a thread of the backend may hold a tensor a
    little longer. The wait happens only once, so that a wrong answer is not waited for each time.
    """
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr("ddp_lessons.checks.beyond_ddp.live_tensors.MAX_LINGER_S", 0)
    alive = Alive(NUM_BYTES - 1)
    with alive:
        whole = torch.ones(100)
    assert alive.num_bytes() == alive.num_bytes() == whole.nbytes
    assert waited == [0.02]


@pytest.mark.parametrize(("num_busy", "num_waits"), [(0, 10), (15, 25)])
def test_what_is_too_much_is_counted_until_all_threads_rest(monkeypatch, num_busy, num_waits):
    """
    While a thread of the backend runs, or waits for a core, it may be about to drop a tensor. So
    excess memory is counted again until all threads sleep.
    """
    waited, pulses = [], iter([False] * num_busy + [True] * 10)
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr(
        alive_module, "thread_stats_of", lambda pid: SimpleNamespace(others_sleep=next(pulses))
    )
    alive = Alive(NUM_BYTES - 1)
    with alive:
        whole = torch.ones(100)
    assert alive.num_bytes() == whole.nbytes
    assert len(waited) == num_waits


def test_what_a_busy_thread_lets_go_of_at_last_does_not_count(monkeypatch):
    """
    A tensor that a busy thread drops late does not count, because a thread may run late on a
    crowded machine.
    """
    held, waited = [], []

    def let_go_at_the_thirtieth_look(seconds):
        waited.append(seconds)
        if len(waited) == 30:
            held.clear()

    monkeypatch.setattr("time.sleep", let_go_at_the_thirtieth_look)
    monkeypatch.setattr(
        alive_module, "thread_stats_of", lambda pid: SimpleNamespace(others_sleep=False)
    )
    alive = Alive(NUM_BYTES - 1)
    with alive:
        held.append(torch.ones(100))
    assert alive.num_bytes() == 0
