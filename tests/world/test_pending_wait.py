"""
The object for which a line waits inside C++, read from the frame of a thread that really waits.
"""

import ast
import codeop
import contextlib
import linecache
import sys
import threading
from datetime import timedelta
from queue import SimpleQueue

import pytest
import torch.distributed as dist
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.ranks.rank.pending_wait import STORE, WAIT, PendingWait, pending_wait_at

CELL_FILE = "/tmp/ipykernel_1/handles.py"


def hold_awaited(source, free, expected, **names):
    """
    Run a source in a thread, and assert that `pending_wait_at` gives the expected result.

        Args:
            source: A cell's source; its last line waits.
            free: Called to end the wait.
            expected: The PendingWait.
            names: The namespace in which the source runs.
    """
    linecache.cache[CELL_FILE] = (len(source), None, source.splitlines(keepends=True), CELL_FILE)
    code = compile(source, CELL_FILE, "exec")
    thread = threading.Thread(target=exec, args=(code, names))
    thread.start()
    num_lines = source.count("\n")

    def look():
        frame = sys._current_frames().get(thread.ident)
        at_end = frame and frame.f_code.co_filename == CELL_FILE and frame.f_lineno >= num_lines
        return at_end and pending_wait_at(frame) == expected

    try:
        wait_until(look, HANGS_AFTER_S, expected)
    finally:
        free()
        thread.join(HANGS_AFTER_S)
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
    `get` blocks as `wait` does, and the time limit is read, too: a learner's own limit must end in
    torch's own error.
    """

    class Box:
        pass

    store, box = dist.HashStore(), Box()
    box.store = store
    names = {"store": store, "box": box, "make": lambda: store, "timedelta": timedelta}
    names["limit"] = timedelta(seconds=7)
    expected = PendingWait(STORE, "", timeout_s)
    hold_awaited(f"x = 1\n{line}\n", lambda: store.set("k", "v"), expected, **names)


def test_awaited_reads_a_call_over_several_lines():
    """
    A call may take several lines: then the line that waits is not the line with the method's name.
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
        return inside and pending_wait_at(frame).call == STORE

    try:
        wait_until(look, HANGS_AFTER_S, "the thread to wait")
    finally:
        store.set("k", "v")
        thread.join(HANGS_AFTER_S)


@pytest.mark.parametrize("line", ["queue.get()", "gate.acquire()", "gate.acquire(True, 9)"])
def test_awaited_leaves_other_waits_alone(line):
    """
    A queue's `get` and a lock's `acquire` are no waits for a store: ranks that wait for their own
    threads are in no deadlock.
    """
    queue, gate = SimpleQueue(), threading.Lock()
    gate.acquire()

    def free():
        queue.put(1)
        gate.release()

    hold_awaited(f"x = 1\n{line}\n", free, PendingWait(), queue=queue, gate=gate)


def test_awaited_takes_an_unknown_wait_for_a_handle():
    """
    An object that cannot be looked up without running code is judged by the method's name, as in
    `make().wait()`.
    """
    gate = threading.Lock()
    gate.acquire()

    class Handle:
        wait = gate.acquire

    hold_awaited("x = 1\nmake().wait()\n", gate.release, PendingWait(WAIT), make=Handle)


@pytest.mark.parametrize("module", [ast, codeop])
def test_no_tree_is_made_while_another_thread_makes_one(module, monkeypatch):
    """
    While another thread makes a syntax tree, none is made: Python up to 3.11.7 and 3.12.1 would
    raise a SystemError about its depth in that thread.
    """
    source = "def waits(look):\n    return look.now()\n"
    linecache.cache[CELL_FILE] = (len(source), None, source.splitlines(keepends=True), CELL_FILE)
    names = {}
    exec(compile(source, CELL_FILE, "exec"), names)
    exec(compile("def parse(waits, look): return waits(look)", module.__file__, "exec"), names)
    trees = []

    class Look:
        def now(self):
            with contextlib.suppress(AttributeError):  # it got no tree from the patch below
                pending_wait_at(sys._getframe(1))
            return len(trees)

    with monkeypatch.context() as patch:  # pytest needs the real function to report a failure
        patch.setattr(ast, "parse", lambda *args, **options: trees.append(1))
        seen = [names["waits"](Look()), names["parse"](names["waits"], Look())]
    assert seen == [1, 1]
