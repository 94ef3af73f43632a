"""
A thread that waits for a message that Gloo has forgotten is woken, and no other thread.
"""

import sys

import pytest
from waiting import HANGS_AFTER_S

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.private import gloo_wakeup
from ddp_lessons.ranks.kernel.cells import run_cell

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

WAIT = """
import threading, time, torch, torch.distributed as dist
from ddp_lessons.private.gloo_wakeup import wake_forgotten_threads
ended = []
def wait():
    try:
        {call}
    except RuntimeError:
        pass
    ended.append(True)
num_woken = 0
if dist.get_rank() == 0:
    waiting = threading.Thread(target=wait)
    waiting.start()
    deadline = time.monotonic() + {limit_s}
    while not ended and time.monotonic() < deadline:
        num_woken += wake_forgotten_threads()
        time.sleep(0.01)
    waiting.join(timeout={limit_s})
    assert not waiting.is_alive()
"""


@pytest.fixture(scope="module")
def two_ranks():
    """
    Start two ranks, once for all tests.
    """
    yield start_ranks(2)
    stop_ranks()


@pytest.fixture
def ranks(two_ranks):
    """
    Return the ranks in a new group, because a wake-up leaves the old group unusable.
    """
    two_ranks.join()
    return two_ranks


@pytest.mark.parametrize(
    "call",
    [
        "dist.recv(torch.zeros(1), src=1)",
        "dist.send(torch.zeros(1), dst=1)",
        "dist.all_reduce(torch.zeros(100))",
        "dist.irecv(torch.zeros(1), src=1).wait()",
    ],
)
def test_whoever_waits_for_a_message_is_woken(ranks, call):
    """
    A wait for a message is woken on any thread: the main one, the learner's, or Gloo's own.
    """
    run_cell(ranks, WAIT.format(call=call, limit_s=HANGS_AFTER_S))
    assert ranks.view["num_woken"][0] >= 1


def test_nobody_is_woken_who_waits_for_something_else(ranks):
    """
    A lock, a queue and a sleep are no waits for a message, and neither is a finished collective.
    Nothing is woken.
    """
    run_cell(
        ranks,
        """
import queue, threading, time, torch, torch.distributed as dist
from ddp_lessons.private.gloo_wakeup import wake_forgotten_threads
x = torch.ones(10)
for _ in range(20):
    dist.all_reduce(x)
empty = queue.Queue()
waits = [threading.Thread(target=work, daemon=True) for work in (empty.get, lambda: time.sleep(3))]
for thread in waits:
    thread.start()
num_woken = sum(wake_forgotten_threads() for _ in range(100))
empty.put(None)
dist.barrier()
dist.all_reduce(x)
""",
    )
    assert ranks.view["num_woken"] == [0, 0]


def test_without_gloos_names_nobody_is_woken(monkeypatch):
    """
    Another version of torch may name Gloo's symbols differently. Then nothing is woken, and the
    rank is replaced, as where /proc is missing.
    """
    monkeypatch.setattr(gloo_wakeup, "_TABLE", "no_such_name")
    gloo_wakeup._gloo.cache_clear()
    try:
        assert gloo_wakeup.wake_forgotten_threads() == 0
    finally:
        gloo_wakeup._gloo.cache_clear()


def test_this_torch_has_the_names():
    """
    This torch has the symbols. If a later version lacks them, this test fails.
    """
    gloo_wakeup._gloo.cache_clear()
    table, waits = gloo_wakeup._gloo()
    assert table
    assert len(waits) == 2
