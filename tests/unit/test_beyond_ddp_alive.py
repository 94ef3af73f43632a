"""
The checks of tasks 15.1 and 15.2 count what is alive, whoever holds it.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ddp_lessons.checks.beyond_ddp import alive as alive_module
from ddp_lessons.checks.beyond_ddp.alive import Alive

NUM_BYTES = 4 * 100


def test_what_autograd_holds_counts():
    """
    Python's garbage collector does not see it.
    """
    alive, weight = Alive(math.inf), nn.Parameter(torch.ones(100))
    with alive:
        loss = (weight * torch.ones(100)).sum()
    assert alive.num_bytes([loss]) == NUM_BYTES  # the ones
    with alive:
        loss.backward()
    assert alive.num_bytes([loss, weight.grad]) == 0


def test_view_counts_with_what_it_is_a_view_of():
    """
    A part that is a slice of a weight keeps the whole weight.
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
    In a list of an object that has no name here, as a plain tensor or as an array of NumPy's.
    """
    alive, keeper = Alive(math.inf), type("Keeper", (), {})()
    with alive:
        keeper.things = [{"weight": torch.ones(100)}, torch.ones(100).numpy()]
    assert alive.num_bytes() == 2 * NUM_BYTES


def test_what_only_waits_to_be_collected_is_gone():
    """
    A circle of objects is freed when Python comes round to it, which is not when we count.
    """
    alive, keeper = Alive(0), type("Keeper", (), {})()
    with alive:
        keeper.thing, keeper.itself = torch.ones(100), keeper
    del keeper
    assert alive.num_bytes() == 0


def test_storage_that_was_emptied_does_not_count():
    """
    Who frees memory by resizing it has freed it.
    """
    alive = Alive(math.inf)
    with alive:
        whole = torch.ones(100)
    assert alive.num_bytes() == NUM_BYTES
    whole.untyped_storage().resize_(0)
    assert alive.num_bytes() == 0


def test_what_is_too_much_gets_time_to_go_once(monkeypatch):
    """
    A thread of the backend may hold a tensor a little longer; a wrong answer is not waited for
    again and again.
    """
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr("ddp_lessons.checks.beyond_ddp.alive.MAX_LINGER_S", 0)
    alive = Alive(NUM_BYTES - 1)
    with alive:
        whole = torch.ones(100)
    assert alive.num_bytes() == alive.num_bytes() == whole.nbytes
    assert waited == [0.02]


@pytest.mark.parametrize(("num_busy", "num_waits"), [(0, 10), (15, 25)])
def test_what_is_too_much_is_counted_until_all_threads_rest(monkeypatch, num_busy, num_waits):
    """
    A thread of the backend that has the core, or waits for one, may be about to let go.
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
    On a crowded machine it may have its turn late.
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
