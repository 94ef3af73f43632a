"""
System calls that keep processes together, on processes that these tests start.
"""

import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from processes import is_running
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.ranks.system import processes as system
from ddp_lessons.ranks.system.processes import (
    can_fork,
    children_of,
    cpu_seconds,
    descendants_of,
    open_process,
    shut_down_sockets,
    tree_cpu_seconds,
    waits_on_lock,
)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="these calls are Linux's"),
]

GONE = 2**22 + 1
"""
A process id that Linux never assigns.
"""


@pytest.fixture
def python():
    """
    Return a function that starts Python on a program, and returns the process once it has printed
    "ready".
    """
    started = []

    def start(program, *args, **options):
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


LOCKED = "import threading; lock = threading.Lock(); lock.acquire(); print('ready', flush=True); "
READS = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("program", "waits"),
    [
        (LOCKED + "lock.acquire()", True),
        (LOCKED + "lock.acquire(timeout=600)", True),
        (READS, False),
        ("import time; print('ready', flush=True); time.sleep(600)", False),
    ],
)
def test_waits_on_lock_tells_a_lock_from_a_sleep(python, program, waits):
    """
    A wait for a lock is distinguished from a sleep: a signal would end a sleep early, but not a
    wait for a lock.
    """
    pid = python(program).pid
    wait_until(
        lambda: psutil.Process(pid).status() == psutil.STATUS_SLEEPING, HANGS_AFTER_S, "it to wait"
    )
    if waits:
        wait_until(lambda: waits_on_lock(pid), HANGS_AFTER_S, "the lock to be seen")
    else:
        wait_until(
            lambda: syscall_of(pid) in ("0", "35", "230"), HANGS_AFTER_S, "read or nanosleep"
        )
        assert not waits_on_lock(pid)


def syscall_of(pid):
    """
    Return the number of the system call in which a process is, or 0, which is read on x86-64.
    """
    with open(f"/proc/{pid}/syscall") as f:
        number = f.read().split()[0]
    return number if os.uname().machine == "x86_64" else "0"


def test_waits_on_lock_of_a_process_that_is_gone():
    """
    A process may end before it is looked at; then it waits for no lock.
    """
    assert not waits_on_lock(GONE)


CONNECTED = """
import socket, sys
ports = [int(port) for port in sys.argv[1:]]
sockets = [socket.create_connection(("127.0.0.1", port)) for port in ports]
listener = socket.create_server(("127.0.0.1", 0))
left, right = socket.socketpair()
print("ready", flush=True)
sys.stdin.readline()
left.sendall(b"x")
print(right.recv(1), [s.send(b"x") for s in sockets[1:]], flush=True)
sockets[0].send(b"x")
"""


def test_shut_down_sockets_of_another_process(python):
    """
    The sockets of another process are shut down, for a rank that holds the GIL cannot do it itself.
    Sockets to the controller's ports are spared.
    """
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]
    child = python(CONNECTED, *ports, stderr=subprocess.PIPE)
    peers = [listener.accept()[0] for listener in listeners]
    num_cut = shut_down_sockets(child.pid, spared_ports=ports[1:])
    if num_cut == 0 and os.geteuid() != 0:
        pytest.skip("this machine does not let a user reach into a child")
    assert num_cut == 1
    peers[0].settimeout(HANGS_AFTER_S)
    assert peers[0].recv(1) == b""
    child.stdin.write("go on\n")
    child.stdin.flush()
    assert child.stdout.readline() == "b'x' [1]\n"
    assert peers[1].recv(1) == b"x"
    assert "BrokenPipeError" in child.stderr.read()
    for sock in (*listeners, *peers):
        sock.close()


def test_shut_down_sockets_of_a_process_that_is_gone():
    """
    A process that was killed in the meantime has no sockets to shut down.
    """
    assert shut_down_sockets(GONE, []) == 0


CHILD = """
import os, sys
from ddp_lessons.ranks.system.processes import die_with_parent
die_with_parent(os.getppid())
print("ready", os.getpid(), flush=True)
sys.stdin.read()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
line = child.stdout.readline()
print("ready", flush=True)
print(line, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_die_with_parent_ends_the_child(python, signum):
    """
    A child ends with its parent, also after kill -9 of the supervisor, which then cannot end its
    ranks itself.
    """
    parent = python(PARENT, CHILD)
    child_pid = int(parent.stdout.readline().split()[1])
    assert is_running(child_pid)
    parent.send_signal(signum)
    parent.wait(HANGS_AFTER_S)
    wait_until(lambda: not is_running(child_pid), HANGS_AFTER_S, "the child to end")


def test_die_with_parent_of_a_parent_that_is_gone():
    """
    A parent may end before its child calls `die_with_parent`. No signal would come then, so the
    child ends at once.
    """
    program = (
        f"from ddp_lessons.ranks.system.processes import die_with_parent; die_with_parent({GONE})"
    )
    ended = subprocess.run([sys.executable, "-c", program])
    assert ended.returncode == 1


def test_open_process_becomes_readable_at_the_end(python):
    """
    The file descriptor of a process becomes readable at its end, so the supervisor can wait for its
    kernel and for orders in one selector.
    """
    child = python(READS)
    fd = open_process(child.pid)
    assert fd is not None
    with os.fdopen(fd):
        import select

        assert select.select([fd], [], [], 0)[0] == []
        child.kill()
        assert select.select([fd], [], [], HANGS_AFTER_S)[0] == [fd]
    assert open_process(GONE) is None


GRANDPARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print("ready", flush=True)
sys.stdin.readline()
child.stdin.close()
sys.stdin.readline()
"""


def test_processes_are_counted_with_their_descendants(python):
    """
    CPU time includes that of descendants: a DataLoader's workers compute for their rank, and that
    is progress of the rank.
    """
    top = python(GRANDPARENT, READS + "\nwhile True: pass")
    (child,) = children_of(top.pid)
    try:
        assert descendants_of(top.pid) == [child]
        assert child in descendants_of(os.getpid())
        least = cpu_seconds(top.pid) + cpu_seconds(child)
        before = tree_cpu_seconds(top.pid)
        assert least <= before <= cpu_seconds(top.pid) + cpu_seconds(child)
        top.stdin.write("have the child compute\n")
        top.stdin.flush()
        wait_until(
            lambda: tree_cpu_seconds(top.pid) > before + 0.1, HANGS_AFTER_S, "CPU time to be used"
        )
    finally:
        os.kill(child, signal.SIGKILL)  # it computes for ever, and does not end with its parent


def test_processes_that_are_gone_have_no_time_and_no_children():
    """
    A process that ends while it is looked at has no CPU time and no children, and this is no error.
    """
    assert cpu_seconds(GONE) is None
    assert tree_cpu_seconds(GONE) is None
    assert children_of(GONE) == []
    assert descendants_of(GONE) == []


@pytest.mark.parametrize(("platform", "answer"), [(True, True), (False, False)])
def test_can_fork_on_linux_only(platform, answer, monkeypatch):
    """
    Fork is used only on Linux, because macOS's own libraries crash in a forked child.
    """
    monkeypatch.setattr(system, "_LINUX", platform)
    able, reason = can_fork()
    assert able is answer
    assert reason
