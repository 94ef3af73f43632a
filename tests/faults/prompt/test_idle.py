"""
Ranks that nobody uses are parked: ended after the minutes that a teacher sets, and said so.
"""

import threading

import pytest
from IPython.core.events import EventManager, available_events
from kernels import running_kernel
from processes import new_mark, wait_until_gone
from waiting import comes_true, wait_until

from ddp_lessons.ranks.system.idle import IdleWatch

NAME = "DDP_LESSONS_PARK_AFTER"
SHORT_MIN = "0.05"
START = "from ddp_lessons import start_ranks\nranks = start_ranks(2, device='cpu')\n%px x = 7"


AFTER_S = 60.0


class Scene:
    """
    A watch with IPython's own events and a made-up clock, and a note of what it did.
    """

    def __init__(self, has_work=lambda: False):
        self.now, self.acted = 100.0, 0
        self.events = EventManager(None, available_events, print_on_error=False)
        self.watch = IdleWatch(self.events, AFTER_S, has_work, self._act, lambda: self.now)

    def _act(self):
        self.acted += 1

    def listeners(self):
        return [listener for found in self.events.callbacks.values() for listener in found]

    def look_after(self, seconds):
        """
        Look as the watch's thread does, later.
        """
        self.now += seconds
        return self.watch.look()


@pytest.fixture
def _no_thread(monkeypatch):
    """
    Leave all looks to the test.
    """
    monkeypatch.setattr(IdleWatch, "_watch", lambda watch: None)


@pytest.mark.usefixtures("_no_thread")
def test_idle_watch_acts_once_nobody_runs_a_cell():
    """
    It counts from the end of a cell: a cell that trains for an hour is not idle.
    """
    scene = Scene()
    assert scene.look_after(3600.0) is None  # we are in a cell, the one that has started the ranks
    scene.events.trigger("post_execute")
    assert scene.look_after(59.0) == 1.0
    assert scene.acted == 0
    scene.look_after(1.0)
    assert scene.acted == 1


@pytest.mark.usefixtures("_no_thread")
def test_idle_watch_waits_for_a_cell_that_has_begun():
    """
    A learner who came back in time keeps everything.
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
    `%%px --noblock` gives the prompt back, and the ranks train on.
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
    Each start_ranks would leave two listeners, and a thread, in the kernel.
    """
    threads = set(threading.enumerate())
    scene = Scene()
    assert len(scene.listeners()) == 2
    (thread,) = set(threading.enumerate()) - threads
    scene.watch.close()
    assert scene.listeners() == []
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert scene.acted == 0


@pytest.mark.timeout(180)
def test_parked_ranks_are_gone_and_say_so():
    """
    Thirty learners who read hold memory that thirty who run need. Who returns is told what to do.
    """
    mark = new_mark()
    with running_kernel(**mark, **{NAME: SHORT_MIN}) as kernel:
        assert kernel.run(START).status == "ok"
        wait_until_gone(mark, 30, but=(kernel.pid,))
        told = kernel.run("%px print(x)")
        assert (told.status, told.ename) == ("error", "RanksGone")
        assert told.evalue == (
            "The ranks were parked: they end, and their variables with them, when no cell is run "
            f"for {SHORT_MIN} min. Run start_ranks() again, then the cells that you need."
        )
        assert kernel.value("repr(ranks)") == "2 ranks, parked"
        checked = kernel.run("from ddp_lessons.checks import ranks as check\ncheck.my_items()")
        assert checked.evalue == told.evalue
        again = kernel.run(f"{START}\nprint('ready')")
        assert again.text.startswith(f"{SHORT_MIN} min without a cell had ended the ranks before.")
        assert "2 ranks ready" in again.text
    wait_until_gone(mark, 10)


@pytest.mark.timeout(180)
def test_ranks_that_train_unwatched_are_not_parked():
    """
    A learner starts a long training, and reads on while it runs.
    """
    with running_kernel(**{NAME: SHORT_MIN}) as kernel:
        assert kernel.run(START).status == "ok"
        kernel.run("%%px --noblock\nimport time\ntime.sleep(8)\ny = x")
        # The kernel is not asked meanwhile: a question would be a cell.
        gone = comes_true(lambda: not kernel.manager.is_alive(), 6)
        assert not gone
        wait_until(lambda: kernel.value("not ranks.client.outstanding"), 30, "the training")
        assert kernel.run("%px print(y)").text == "[0] 7\n[1] 7\n"


@pytest.mark.timeout(180)
def test_ranks_are_not_parked_unless_a_teacher_says_so():
    """
    At home nobody else needs the memory. A setting that is no number is told at once.
    """
    with running_kernel() as kernel:
        assert kernel.run(START).status == "ok"
        assert kernel.value("ranks._idle_watch is None")
    with running_kernel(**{NAME: "half an hour"}) as kernel:
        told = kernel.run(START)
        assert told.ename == "BadInput"
        assert told.evalue.startswith(f"Wrong setting: {NAME} must be a number above 0 (got 'half")
        assert kernel.run("start_ranks(2, device='cpu')").ename == "BadInput"
