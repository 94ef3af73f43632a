"""
When idle ranks are parked, on a made-up clock.
"""

import threading

import pytest
from IPython.core.events import EventManager, available_events
from waiting import HANGS_AFTER_S

from ddp_lessons.ranks.system.park_timer import ParkTimer

AFTER_S = 60.0


class Scene:
    """
    A park timer with IPython's own events and a made-up clock. `acted` counts its actions.
    """

    def __init__(self, has_work=lambda: False):
        self.now, self.acted = 100.0, 0
        self.events = EventManager(None, available_events, print_on_error=False)
        self.watch = ParkTimer(self.events, AFTER_S, has_work, self._act, lambda: self.now)

    def _act(self):
        self.acted += 1

    def listeners(self):
        return [listener for found in self.events.callbacks.values() for listener in found]

    def look_after(self, seconds):
        """
        Poll as the timer's thread does, after some seconds.
        """
        self.now += seconds
        return self.watch.look()


@pytest.fixture
def _no_thread(monkeypatch):
    """
    Start no thread, so that only the test polls.
    """
    monkeypatch.setattr(ParkTimer, "_watch", lambda watch: None)


@pytest.mark.usefixtures("_no_thread")
def test_idle_watch_acts_once_nobody_runs_a_cell():
    """
    The timer acts some time after the end of a cell: a cell that trains for an hour is not idle.
    """
    scene = Scene()
    assert scene.look_after(3600.0) is None  # this is still the cell that started the ranks
    scene.events.trigger("post_execute")
    assert scene.look_after(59.0) == 1.0
    assert scene.acted == 0
    scene.look_after(1.0)
    assert scene.acted == 1


@pytest.mark.usefixtures("_no_thread")
def test_idle_watch_waits_for_a_cell_that_has_begun():
    """
    A new cell stops the timer, so a learner who returns in time keeps the ranks.
    """
    scene = Scene()
    scene.events.trigger("post_execute")
    scene.look_after(59.0)
    scene.events.trigger("pre_execute")
    assert scene.look_after(3600.0) is None
    scene.events.trigger("post_execute")
    assert scene.look_after(59.0) == 1.0
    assert scene.acted == 0


@pytest.mark.usefixtures("_no_thread")
def test_idle_watch_waits_for_work_that_no_cell_waits_for():
    """
    The timer waits while ranks work without a running cell, as after `%%px --noblock`.
    """
    works = [True, True, False]
    scene = Scene(has_work=lambda: works.pop(0))
    scene.events.trigger("post_execute")
    assert [scene.look_after(AFTER_S) for _ in range(2)] == [AFTER_S, AFTER_S]
    assert scene.acted == 0
    scene.look_after(AFTER_S)
    assert (scene.acted, works) == (1, [])


def test_idle_watch_that_is_closed_leaves_nothing_behind():
    """
    A closed timer leaves no listeners and no thread. Otherwise each start_ranks would leave some in
    the kernel.
    """
    threads = set(threading.enumerate())
    scene = Scene()
    assert len(scene.listeners()) == 2
    (thread,) = set(threading.enumerate()) - threads
    scene.watch.close()
    assert scene.listeners() == []
    thread.join(HANGS_AFTER_S)
    assert not thread.is_alive()
    assert scene.acted == 0
