"""
The stacks of a rank that cannot answer, as faulthandler really writes them.
"""

import faulthandler
import threading

import pytest

from ddp_lessons.ranks.diagnosis.native_stacks import parse_stacks
from ddp_lessons.ranks.kernel.agent_client import snapshot_from_outside
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.processes import waits_on_lock

CELL_FILE = "/tmp/ipykernel_4711/1234567890.py"
C10D_FILE = "/site-packages/torch/distributed/distributed_c10d.py"


def run(source, file, **names):
    """
    Run a source as if it came from a file, and return its namespace.
    """
    exec(compile(source, file, "exec"), names)
    return names


@pytest.fixture
def dump(tmp_path):
    """
    Return an object whose call writes the stacks of all threads, and whose `text` is what it wrote.
    """
    path = tmp_path / "rank-0.stack"

    class Dump:
        def __call__(self):
            with open(path, "w") as file:
                faulthandler.dump_traceback(file, all_threads=True)

        @property
        def text(self):
            return path.read_text()

    return Dump()


def test_parse_stacks_finds_the_line_of_the_cell(dump):
    """
    The cell's line is found between the engine's frames, which are below it, and the functions that
    it called.
    """
    run("x = 1\n\ndump()\n", CELL_FILE, dump=dump)
    assert parse_stacks(dump.text) == (3, "__call__", "")


def test_parse_stacks_takes_the_innermost_line_of_the_cell(dump):
    """
    If the cell calls its own function, that function's line is the rank's line.
    """
    run("def f():\n    dump()\n\nf()\n", CELL_FILE, dump=dump)
    assert parse_stacks(dump.text)[0] == 2


def test_parse_stacks_names_the_communication_call(dump):
    """
    A rank may hold the GIL inside torch. The communication call is then in the dump, between the
    cell and the innermost frame.
    """
    library = run("def all_reduce(t):\n    dump()\n", C10D_FILE, dump=dump)
    run("t = 0\nall_reduce(t)\n", CELL_FILE, all_reduce=library["all_reduce"])
    assert parse_stacks(dump.text) == (2, "__call__", "all_reduce")


def test_parse_stacks_finds_the_thread_with_the_cell(dump):
    """
    The cell's thread is found although the threads of the rank agent and of ZeroMQ are dumped,
    before or after it.
    """
    gate = threading.Event()
    others = [threading.Thread(target=gate.wait) for _ in range(3)]
    for thread in others:
        thread.start()
    cell = threading.Thread(target=run, args=("\n\n\n\ndump()\n", CELL_FILE), kwargs={"dump": dump})
    cell.start()
    cell.join()
    gate.set()
    for thread in others:
        thread.join()
    assert dump.text.count("(most recent call first):") >= 5
    assert parse_stacks(dump.text)[0] == 5


def test_parse_stacks_of_a_rank_without_a_cell(dump):
    """
    A rank between two cells has no line, and neither has a file that is still empty.
    """
    dump()
    assert parse_stacks(dump.text) is None
    assert parse_stacks("") is None
    assert parse_stacks('Thread 0x0000 (most recent call first):\n  File "/tmp/ipyk') is None


class SupervisorClient:
    """
    A fake supervisor client: it "signals" a rank by a function that writes the stacks.
    """

    def __init__(self, folder, pids, on_signal=lambda: None):
        self.folder = folder
        self.pids = pids
        self.supervisor_pid = 1
        self.signals = []
        self.on_signal = on_signal

    def signal_ranks(self, ranks, signum):
        self.signals.append((ranks, signum))
        self.on_signal()


def test_snapshot_from_outside_reads_what_is_new(dump, tmp_path):
    """
    Only the newest stack is read. The file still has those of an earlier signal, whose line would
    be wrong.
    """
    run("dump()\n", CELL_FILE, dump=dump)
    first = dump.text
    run("\n\ndump()\n", CELL_FILE, dump=dump)
    second = dump.text
    path = tmp_path / "rank-0.stack"
    path.write_text(first)
    supervisor = SupervisorClient(tmp_path, {0: 1}, lambda: path.write_text(first + second))
    snapshot = snapshot_from_outside(
        supervisor, 0, lambda line: f"text of {line}", may_interrupt_sleep=True
    )
    assert (snapshot.line, snapshot.code, snapshot.call) == (3, "text of 3", "")
    assert len(supervisor.signals) == 1


def test_snapshot_from_outside_of_a_rank_that_stays_silent(tmp_path, monkeypatch):
    """
    A rank that does not answer in time has no snapshot, and a rank that is gone is not signalled.
    """
    monkeypatch.setattr(clocks, "STACK_ANSWER_S", 0)
    (tmp_path / "rank-0.stack").touch()
    assert (
        snapshot_from_outside(SupervisorClient(tmp_path, {0: 1}), 0, str, may_interrupt_sleep=True)
        is None
    )
    gone = SupervisorClient(tmp_path, {})
    assert snapshot_from_outside(gone, 0, str, may_interrupt_sleep=True) is None
    assert gone.signals == []


def test_snapshot_from_outside_leaves_a_sleeper_alone(tmp_path):
    """
    A rank that sleeps is not signalled unless `may_interrupt_sleep` is set: the signal would end
    its `time.sleep`.
    """
    assert not waits_on_lock(threading.get_native_id())
    supervisor = SupervisorClient(tmp_path, {0: threading.get_native_id()})
    assert snapshot_from_outside(supervisor, 0, str, may_interrupt_sleep=False) is None
    assert supervisor.signals == []
