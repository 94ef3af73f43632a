"""
What a line waits for inside C++, read from the frame of a thread that really waits.
"""

import linecache
import sys
import threading
from datetime import timedelta
from queue import SimpleQueue

import pytest
import torch.distributed as dist
from waiting import wait_until

from ddp_lessons.ranks.rank.handles import STORE, WAIT, Awaited, awaited_at

CELL_FILE = "/tmp/ipykernel_1/handles.py"


def awaited_in(source, free, **names):
    """
    Run a source in a thread until it waits, and return what `awaited_at` says of it.

    Args:
        source: It waits in its last line.
        free: Called to end the wait.
        names: Its namespace.
    """
    linecache.cache[CELL_FILE] = (len(source), None, source.splitlines(keepends=True), CELL_FILE)
    code = compile(source, CELL_FILE, "exec")
    thread = threading.Thread(target=exec, args=(code, names))
    thread.start()
    num_lines = source.count("\n")

    def look():
        frame = sys._current_frames().get(thread.ident)
        at_end = frame and frame.f_code.co_filename == CELL_FILE and frame.f_lineno >= num_lines
        return awaited_at(frame) if at_end else None

    try:
        return wait_until(look, 5, "the thread to wait")
    finally:
        free()
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("line", "timeout_s"),
    [
        ("store.wait(['k'])", 300.0),
        ("store.get('k')", 300.0),
        ("box.store.get('k')", 300.0),
        ("make()  .wait(['k'])", None),
        ("store.wait(['k'], limit)", 7.0),
        ("store.wait(['k'], timedelta(seconds=8))", 0.0),
        ("value = [store.get(key) for key in ['k']]", 300.0),
    ],
)
def test_awaited_knows_a_store_and_its_limit(line, timeout_s):
    """
    `get` blocks as `wait` does. A learner's own limit must be left to torch's own error.
    """

    class Box:
        pass

    store, box = dist.HashStore(), Box()
    box.store = store
    names = {"store": store, "box": box, "make": lambda: store, "timedelta": timedelta}
    names["limit"] = timedelta(seconds=7)
    found = awaited_in(f"x = 1\n{line}\n", lambda: store.set("k", "v"), **names)
    assert found == Awaited(STORE, "", timeout_s)


def test_awaited_reads_a_call_over_several_lines():
    """
    The line that waits is not the line that names the method.
    """
    store = dist.HashStore()
    source = "store.wait(\n    [\n        'k',\n    ],\n)\n"
    code = compile(source, CELL_FILE, "exec")
    linecache.cache[CELL_FILE] = (len(source), None, source.splitlines(True), CELL_FILE)
    thread = threading.Thread(target=exec, args=(code, {"store": store}))
    thread.start()

    def look():
        frame = sys._current_frames().get(thread.ident)
        inside = frame and frame.f_code.co_filename == CELL_FILE
        return inside and awaited_at(frame).call

    try:
        assert wait_until(look, 5, "the thread to wait") == STORE
    finally:
        store.set("k", "v")
        thread.join(5)


@pytest.mark.parametrize("line", ["queue.get()", "gate.acquire()", "gate.acquire(True, 9)"])
def test_awaited_leaves_other_waits_alone(line):
    """
    A queue's `get` is no store's: ranks that wait for their own threads are in no deadlock.
    """
    queue, gate = SimpleQueue(), threading.Lock()
    gate.acquire()

    def free():
        queue.put(1)
        gate.release()

    assert awaited_in(f"x = 1\n{line}\n", free, queue=queue, gate=gate) == Awaited()


def test_awaited_takes_an_unknown_wait_for_a_handle():
    """
    What cannot be looked up without running code is judged by its words, as `make().wait()`.
    """
    gate = threading.Lock()
    gate.acquire()

    class Handle:
        wait = gate.acquire

    assert awaited_in("x = 1\nmake().wait()\n", gate.release, make=Handle) == Awaited(WAIT)
