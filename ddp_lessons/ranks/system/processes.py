"""
System calls that tie processes together: die with a parent, adopt orphans, await a process's end.

Linux has all of them. On another system each function does what it can; its docstring says what.
"""

import ctypes
import os
import platform
import signal
import socket
import sys
from collections.abc import Container

END_SIGNAL = signal.SIGRTMIN + 1 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1
"""
The signal that makes a rank of the supervisor interrupt its cell, save its open files and end. No
other code sends this signal.
"""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_SYS_PIDFD_GETFD = 438
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_LINUX = sys.platform.startswith("linux")


def _prctl(option, value):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def die_with_parent(parent_pid: int) -> None:
    """
    Have this process killed when the thread that started it ends. Linux only; elsewhere a no-op.

    Args:
        parent_pid: The parent's process id. If the parent is gone, this process ends at once.
    """
    if not _LINUX:
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent died before the call above
        os._exit(1)


def adopt_orphans() -> None:
    """
    Make this process the parent of its orphaned descendants, so that it can end them. Linux only.
    """
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """
    Give this process a name, which top and `ps -o comm` show. Linux only; elsewhere a no-op.

    Args:
        name: At most 15 characters. It is needed because a forked process has its parent's command
            line.
    """
    if _LINUX:
        _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def open_process(pid: int) -> int | None:
    """
    Return a file descriptor that becomes readable when a process ends, or None.

    None means that this system has no such descriptors, or that the process is gone already.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def can_fork() -> tuple[bool, str]:
    """
    Return whether ranks may be forked on this system from a process that has torch loaded.

    Returns:
        (bool, str): The answer, and the reason in a few words.
    """
    if not _LINUX:
        return False, f"forking is not safe on {sys.platform}"
    return True, "Linux"


def cpu_seconds(pid: int) -> float | None:
    """
    Return the CPU time in seconds that a process and its waited-for children have used.

    Return None if the process is gone or the system has no /proc.

    Source: proc(5), stat, fields 14 to 17.
    """
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(int(x) for x in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """
    Return the process ids of the direct children of a process; none where there is no /proc.
    """
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as f:
                found += [int(word) for word in f.read().split()]
        except OSError:
            continue  # the thread ended while we looked
    return found


def descendants_of(pid: int) -> list[int]:
    """
    Return the process ids of all descendants of a process, children before grandchildren.
    """
    found: list[int] = []
    level = children_of(pid)
    while level:
        found += level
        level = [grandchild for child in level for grandchild in children_of(child)]
    return found


def tree_cpu_seconds(pid: int) -> float | None:
    """
    Return the CPU time in seconds of a process and all its living descendants; None if it is gone.
    """
    own = cpu_seconds(pid)
    if own is None:
        return None
    return own + sum(cpu_seconds(child) or 0.0 for child in descendants_of(pid))


def waits_on_lock(pid: int) -> bool:
    """
    Return whether a process's main thread waits for a lock or condition, as all Gloo waits do.

    A signal does not cut such a wait short, while it would end a sleep. Return False where /proc
    does not show the system call.
    """
    try:
        with open(f"/proc/{pid}/syscall") as f:
            number = f.read().split()[0]
    except OSError:
        return False
    return number == str(_SYS_FUTEX.get(platform.machine()))


def shut_down_sockets(pid: int, spared_ports: Container[int]) -> int:
    """
    Shut down the connected TCP sockets of another process, without its help.

    Args:
        pid: Process id of a descendant of this process.
        spared_ports: Ports of peers. Sockets that are connected to one of them are left alone.

    Returns:
        int: Number of sockets shut down; 0 where the system does not allow it.

    Source: pidfd_getfd(2).
    """
    process = open_process(pid)
    if process is None or not _LINUX:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    num_cut = 0
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if not _is_socket(pid, name):
                continue
            copy = libc.syscall(_SYS_PIDFD_GETFD, process, int(name), 0)
            if copy >= 0:
                num_cut += _shut_down(socket.socket(fileno=copy), spared_ports)
    finally:
        os.close(process)
    return num_cut


def _is_socket(pid, name):
    try:
        return os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    except OSError:
        return False  # the descriptor was closed meanwhile


def _shut_down(sock, spared_ports):
    with sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return 0
        try:
            if sock.getpeername()[1] in spared_ports:
                return 0
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return 0  # the socket listens or is not connected
    return 1
