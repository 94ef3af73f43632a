"""
The few system calls that keep processes together: die with a parent, adopt orphans, watch one end.

Linux has all of them. Elsewhere each does what that system can, and says so.
"""

import ctypes
import os
import platform
import signal
import socket
import sys

END_SIGNAL = signal.SIGRTMIN + 1 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1
"""
Makes a rank of the supervisor end once its cell has, and save what is open. Python sends none.
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


def die_with_parent(parent_pid):
    """
    Have this process killed when the thread that started it ends. Linux only; elsewhere a no-op.

    Args:
        parent_pid: The parent's process id. If it is gone already, this process ends at once.
    """
    if not _LINUX:
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the call above
        os._exit(1)


def adopt_orphans():
    """
    Become the parent of orphaned descendants, so that they can be found and ended. Linux only.
    """
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name):
    """
    Give this process a name, which top and `ps -o comm` show. Linux only; elsewhere a no-op.

    Args:
        name: At most 15 characters. A forked process has its parent's words on its command line.
    """
    if _LINUX:
        _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def open_process(pid):
    """
    Return a file descriptor that becomes readable when a process ends, or None.

    None means that this system has no such descriptor, or that the process is gone already.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def can_fork():
    """
    Tell whether ranks may be forked on this system from a process that has torch loaded.

    Returns:
        (bool, str): The answer, and the reason in a few words.
    """
    if not _LINUX:
        return False, f"forking is not safe on {sys.platform}"
    return True, "Linux"


def cpu_seconds(pid):
    """
    Return the CPU time in seconds that a process and its waited-for children have used.

    None if the process is gone or the system does not tell. Source: proc(5), fields 14 to 17.
    """
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(int(x) for x in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def children_of(pid):
    """
    Return the process ids of the direct children of a process. Empty where /proc does not tell.
    """
    found = []
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


def descendants_of(pid):
    """
    Return the process ids of all descendants of a process, children before grandchildren.
    """
    found = []
    level = children_of(pid)
    while level:
        found += level
        level = [grandchild for child in level for grandchild in children_of(child)]
    return found


def tree_cpu_seconds(pid):
    """
    Return the CPU time in seconds of a process and all its living descendants; None if it is gone.
    """
    own = cpu_seconds(pid)
    if own is None:
        return None
    return own + sum(cpu_seconds(child) or 0.0 for child in descendants_of(pid))


def waits_on_lock(pid):
    """
    Tell whether a process's main thread waits for a lock or condition, as all of Gloo's waits do.

    A signal does not cut such a wait short, as it would a sleep. False where /proc does not tell.
    """
    try:
        with open(f"/proc/{pid}/syscall") as f:
            number = f.read().split()[0]
    except OSError:
        return False
    return number == str(_SYS_FUTEX.get(platform.machine()))


def shut_down_sockets(pid, spared_ports):
    """
    Shut down the connected TCP sockets of another process, which need not lend a hand.

    Args:
        pid: A descendant of this process.
        spared_ports: Sockets whose peer has one of these ports are left alone.

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
        return False  # closed meanwhile


def _shut_down(sock, spared_ports):
    with sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return 0
        try:
            if sock.getpeername()[1] in spared_ports:
                return 0
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return 0  # listening or not connected
    return 1
