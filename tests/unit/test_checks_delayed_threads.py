"""
An answer that returns before its own threads have finished is found, however fast the threads are.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddp_lessons.checks.kit import Case
from ddp_lessons.checks.kit.on_rank.delayed_threads import delayed_threads
from ddp_lessons.checks.kit.on_rank.rank_record import RankContext


def _starts_and_returns(done):
    threading.Thread(target=done.append, args=(1,)).start()


def _joins(done):
    thread = threading.Thread(target=done.append, args=(1,))
    thread.start()
    thread.join()


def _pools(done):
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(done.append, (1, 2))) == [None, None]


def _leaves_an_idle_pool(done):
    assert ThreadPoolExecutor(1).submit(done.append, 1).result() is None


@pytest.mark.parametrize(
    ("answer", "num_left"),
    [(_starts_and_returns, 1), (_joins, 0), (_pools, 0), (_leaves_an_idle_pool, 0)],
)
def test_threads_that_nobody_has_waited_for_are_counted(answer, num_left):
    """
    Threads that the answer did not wait for are counted. A pool without pending work may stay.
    """
    done: list = []
    start = threading.Thread.start
    with delayed_threads() as count:
        answer(done)
        assert count() == num_left
    assert done  # by the late thread too: nothing runs on after the check
    assert threading.Thread.start is start


def test_threads_that_somebody_else_starts_are_none_of_the_answers():
    """
    Threads that other threads of the rank start do not count, because they are not the answer's.
    """
    done: list = []
    goes_on = threading.Event()

    def other():
        goes_on.wait()
        _starts_and_returns(done)
        done.append(2)

    thread = threading.Thread(target=other)
    thread.start()
    with delayed_threads() as count:
        goes_on.set()
        thread.join()
        assert 2 in done
        assert count() == 0


@pytest.mark.parametrize(("must_join_threads", "num_threads"), [(True, 1), (False, 0)])
def test_a_call_tells_of_them_if_the_task_asks(must_join_threads, num_threads):
    """
    A call counts such threads only if the task demands it, because other tasks may keep threads.
    """
    context = RankContext(Case(1), 0, ".", must_join_threads=must_join_threads)
    context.call(_starts_and_returns, [])
    assert context.calls[0].num_threads == num_threads
