"""
Where a rank is, read from the stack of a thread that really waits.
"""

import contextlib
import functools
import linecache
import subprocess
import threading
from pathlib import Path

import pytest
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.ranks.rank.stack_snapshot import main_thread_snapshot, waiting_call
from ddp_lessons.trace.awaiting import Waits
from ddp_lessons.trace.tap import TAP

ROOT = Path(__file__).resolve().parents[2]
CELL_FILE = "/tmp/ipykernel_1/cell.py"


def place_of(source, inside=("<module>",), free=lambda: None, **names):
    """
    Run a cell in a thread until it waits, and return its snapshot.

        Args:
            source: The cell. Its last line waits for `gate`, and it sets `ready` just before it
                waits.
            inside: Names that the innermost function may have once it waits.
            free: Called to end an earlier wait than that for `gate`.
            names: The namespace in which the cell runs.
    """
    linecache.cache[CELL_FILE] = (len(source), None, source.splitlines(keepends=True), CELL_FILE)
    gate = threading.Lock()
    gate.acquire()
    names = {"gate": gate, **names}
    thread = threading.Thread(target=exec, args=(compile(source, CELL_FILE, "exec"), names))
    thread.start()

    def look():
        snapshot = main_thread_snapshot(thread.ident, CELL_FILE, source)
        return snapshot if names.get("ready") and snapshot.function in inside else None

    try:
        return wait_until(look, HANGS_AFTER_S, "the cell to wait")
    finally:
        free()
        gate.release()
        thread.join(HANGS_AFTER_S)
        assert not thread.is_alive()


class Handle:
    """
    A fake handle of a collective: as in torch, its `wait` is C and leaves no Python frame.
    """

    def __init__(self, gate):
        self.wait = gate.acquire


def test_place_is_the_line_of_the_cell():
    """
    The line is the innermost one of the learner's own code, also within a function of the cell.
    """
    source = "def f():\n    global ready\n    ready = 1; gate.acquire()\n\nf()\n"
    snapshot = place_of(source, inside=("f",))
    assert (snapshot.line, snapshot.code) == (3, "ready = 1; gate.acquire()")
    assert (snapshot.call, snapshot.function) == ("", "f")


def test_place_knows_a_handle_that_is_waited_for():
    """
    A handle is waited for in C++, so only the text of the line shows the call.
    """
    source = "handle = make(gate)\nready = True; handle.wait()\n"
    snapshot = place_of(source, make=Handle)
    assert (snapshot.line, snapshot.call) == (2, "wait")


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("/home/ada/ring.py", "ring.py:2"),
        (f"{ROOT}/ddp_lessons/ring/steps.py", ""),
        ("/opt/lib/python3.12/site-packages/ring.py", ""),
        (contextlib.__file__, ""),
        ("/tmp/ipykernel_1/earlier_cell.py", ""),
    ],
)
def test_place_knows_a_handle_waited_for_outside_of_the_cell(file, module):
    """
    If the cell's line does not show the wait, a line in the learner's own module is named, which
    helps more. Lines of libraries are not named.
    """
    source = "def ring(handle):\n    handle.wait()\n"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names = {"make": Handle}
    exec(compile(source, file, "exec"), names)
    snapshot = place_of("ready = True; ring(make(gate))\n", inside=("ring",), **names)
    linecache.checkcache()
    assert (snapshot.line, snapshot.call, snapshot.module) == (1, "wait", module)


@pytest.mark.parametrize("name", ["_wait", "_future_wait"])
def test_place_knows_a_handle_that_is_waited_for_while_a_trace_is_on(name):
    """
    While a trace is on, its frame is between the cell and the handle. A deadlock there was once not
    recognised.
    """
    wait = functools.partial(getattr(Waits(TAP), name), type(threading.Lock()).acquire)
    snapshot = place_of("ready = True; wait(gate)\n", inside=(name,), wait=wait)
    assert (snapshot.line, snapshot.call) == (1, "wait")


def test_place_of_another_kind_of_wait_is_no_communication():
    """
    A wait for a thread or a process is no communication. Ranks that all waited so were once taken
    for a deadlock and ended.
    """
    event, child = threading.Event(), subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    for wait, inside, free in (
        (event, ("wait",), event.set),
        (child, ("_wait", "_try_wait"), child.stdin.close),
    ):
        snapshot = place_of(
            "x = 1\nready = True; it.wait(); gate.acquire()\n", inside, free, it=wait
        )
        assert (snapshot.line, snapshot.call) == (2, "")


def test_place_reads_peer_and_limit_of_a_torch_call():
    """
    The arguments of torch's functions show for which peer, and for how long, they wait.
    """
    file = "/site-packages/torch/distributed/distributed_c10d.py"
    source = (
        "from datetime import timedelta\n"
        "def recv(tensor, src=None, group=None):\n    gate.acquire()\n"
        "def monitored_barrier(timeout=None):\n    gate.acquire()\n"
    )
    for cell, call, peer, timeout_s in (
        ("ready = 1; recv(None, src=3)\n", "recv", 3, None),
        ("ready = 1; recv(None)\n", "recv", None, None),
        ("ready = 1; monitored_barrier(timedelta(seconds=7))\n", "monitored_barrier", None, 7.0),
    ):
        code = compile(source, file, "exec")
        snapshot = place_of(f"exec(code)\n{cell}", inside=(call,), code=code)
        assert (snapshot.line, snapshot.call) == (2, call)
        assert (snapshot.peer, snapshot.timeout_s) == (peer, timeout_s)


@pytest.mark.parametrize(
    ("file", "function", "call"),
    [
        ("/x/torch/distributed/distributed_c10d.py", "all_reduce", "all_reduce"),
        ("C:\\x\\torch\\distributed\\distributed_c10d.py", "recv", "recv"),
        ("/x/torch/distributed/distributed_c10d.py", "get_rank", ""),
        ("/home/me/distributed_c10d.py", "all_reduce", ""),
        ("/tmp/ipykernel_1/1.py", "all_reduce", ""),
        ("/x/torch/autograd/graph.py", "_engine_run_backward", "backward"),
        ("/x/torch/nn/parallel/distributed.py", "_pre_forward", "DDP forward"),
    ],
)
def test_waiting_call_knows_torch_by_its_files(file, function, call):
    """
    torch's calls are recognised by their files: a learner's own all_reduce, which lesson 03 asks
    for, is not torch's.
    """
    assert waiting_call(file, function) == call
