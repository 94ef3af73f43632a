"""
Helpers that find the processes of a test, and wait for their end.
"""

import contextlib
import os
import uuid

import psutil
from waiting import wait_until

from ddp_lessons.launch import free_port

MARK = "DDP_LESSONS_TEST_MARK"


def new_mark():
    """
    Return an environment that marks a kernel and all its descendants, so that `marked` finds them.
    """
    return {MARK: uuid.uuid4().hex}


def marked(mark, but=()):
    """
    Return the living processes that inherited a mark, even if their parent has changed.

    Args:
        mark: A value of `new_mark`.
        but: Process ids to leave out.
    """
    found = []
    for process in psutil.process_iter():
        if process.pid in but:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            has_mark = process.environ().get(MARK) == mark[MARK]
            if has_mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until_gone(mark, timeout_s, but=()):
    """
    Wait until no process with a mark is left.

    Raises:
        AssertionError: Some are left. The message shows their command lines.
    """
    left = []

    def look():
        left[:] = marked(mark, but)
        return not left

    try:
        wait_until(look, timeout_s, "processes to end")
    except AssertionError as error:
        raise AssertionError(f"{error}: {[p.cmdline() for p in left if p.is_running()]}") from None


def is_running(pid):
    """
    Return whether a process runs. A zombie, which waits for its parent, does not.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def holds_at_most(process, num_fds, num_threads):
    """
    Return whether a process has at most these numbers of descriptors and threads.
    """
    return process.num_fds() <= num_fds and process.num_threads() <= num_threads


def listening_addresses(process):
    """
    Return (protocol, address) of every socket on which a process listens.

    The sockets are read from psutil and also from the system's own tables, in case psutil misses
    one.
    """
    found = set()
    for connection in process.net_connections(kind="inet"):
        if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):  # NONE is UDP
            found.add((connection.type.name, connection.laddr.ip))
    inodes = set()
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{process.pid}/fd/{name}"))
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/net/{table}") as lines:
            for words in map(str.split, list(lines)[1:]):
                if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                    found.add((table, words[1].partition(":")[0]))
    return found


def free_ports(count):
    """
    Return different ports on which no process listens now.
    """
    found: set = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)
