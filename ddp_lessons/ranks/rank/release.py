"""
Release a rank whose main thread waits inside Gloo, NCCL or a store, from another thread.

Gloo's own `abort` and `shutdown` do not wake a waiting thread. Shutting down the sockets of its
process group does: every wait then ends in a RuntimeError. NCCL has `abort` for this. A FileStore
has neither a socket nor `abort`. It polls a file, so we make the file impossible to open. A group
that is being made waits for peers to connect, so we connect in place of the absent peers.

Lesson: 02_collectives.
"""

import contextlib
import functools
import os
import socket
import stat
import struct
import sys
import weakref
from collections.abc import Set
from datetime import timedelta
from pathlib import Path
from types import FrameType

from ddp_lessons.private import process_groups
from ddp_lessons.private.nccl_abort import abort_nccl
from ddp_lessons.private.stack_names import FORMING
from ddp_lessons.ranks.system import clocks

_MOST_PEERS = 128
_CONNECTED = (1, 8)  # Linux's numbers for ESTABLISHED and CLOSE_WAIT: this end is not shut down yet


def open_sockets() -> set[tuple[int, int]]:
    """
    Return the descriptor and the inode of every socket of this process.

    A new socket may get the descriptor of a closed one. The inode tells the two apart.

    Returns:
        set[tuple[int, int]]: Pairs of a descriptor and an inode.
    """
    found = set()
    for name in os.listdir("/proc/self/fd" if sys.platform.startswith("linux") else "/dev/fd"):
        fd = int(name)
        try:
            status = os.fstat(fd)
            if stat.S_ISSOCK(status.st_mode):
                found.add((fd, status.st_ino))
        except OSError:
            continue  # it was the descriptor of the listing itself, which is closed by now
    return found


class SparedSockets:
    """
    The sockets of this process that are not torch's, and must not be shut down.

    These are the sockets that are open when this object is made, and all sockets that Python code
    makes later. A learner's own socket (a web request, a logger) is a Python object; the sockets
    of Gloo, TCPStore and NCCL are not. So we note each Python socket when it is made: searching
    all objects for sockets would take long, and would find some that are half made.
    """

    def __init__(self) -> None:
        self._open_before = open_sockets()
        # keyed by id, since a learner's subclass of socket may have no hash
        self._made: dict[int, weakref.ref[socket.socket]] = {}
        make = socket.socket.__init__

        @functools.wraps(make)
        def noting(sock, *args, **kwargs):
            make(sock, *args, **kwargs)
            key = id(sock)
            self._made[key] = weakref.ref(sock, lambda _: self._made.pop(key, None))

        socket.socket.__init__ = noting  # type: ignore

    def now(self) -> set[tuple[int, int]]:
        """
        Return the spared sockets that are open now, as pairs of a descriptor and an inode.
        """
        made = [reference() for reference in list(self._made.values())]
        ours = {socket.socket.fileno(sock) for sock in made if sock is not None}
        return {one for one in open_sockets() if one in self._open_before or one[0] in ours}


def cut_group_sockets(spared: Set[tuple[int, int]]) -> int:
    """
    Shut down every connected TCP socket that torch opened in this process.

    Args:
        spared: Set of sockets that are not torch's (see `SparedSockets.now`).

    Returns:
        int: Number of sockets that were shut down.
    """
    theirs = open_sockets() - spared
    return sum(_through(fd, _shut_down) for fd, _ in theirs if _through(fd, _is_connected))


def _through(fd, work):
    # Python closes a copy of the descriptor, so torch keeps its own socket.
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            return work(copy)
    except OSError:
        return False  # closed meanwhile


def _is_connected(sock):
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    if hasattr(socket, "TCP_INFO"):
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return state in _CONNECTED  # shutting down a listening socket kills the process
    sock.getpeername()  # raises unless it is connected
    return True


def _shut_down(sock):
    sock.shutdown(socket.SHUT_RDWR)
    return True


def connect_for_absent_peers(spared: Set[tuple[int, int]], frame: FrameType | None) -> int:
    """
    End a wait of Gloo's for peers to connect, during which there is no socket to shut down yet.

    In each pair of ranks, one connects to the other and sends the number of the peer that it is.
    Gloo waits until the group's time limit for a rank that left or died before it did so. So we
    connect once for each number that a peer may have, send it, and close the connection.

    Args:
        spared: Set of sockets that are not torch's (see `SparedSockets.now`).
        frame: The main thread's current frame.

    Returns:
        int: Number of sockets that waited for peers.
    """
    ports = {getattr(_root_store(store), "port", None) for store in _stores_in_use(frame)}
    addresses = [_through(fd, _listens_at) for fd, _ in open_sockets() - spared]
    expecting = [found for found in addresses if found and found[1][1] not in ports]
    for family, address in expecting:
        for number in range(_MOST_PEERS):
            # Once the rank is released, its socket is closed, and further connections are refused.
            with contextlib.suppress(ConnectionError), socket.socket(family) as sock:
                sock.connect(address)
                sock.sendall(struct.pack("=q", number))
    return len(expecting)


def _listens_at(sock):
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return (sock.family, sock.getsockname()) if is_listening else None


def _is_forming_a_group(frame):
    while frame is not None:
        if frame.f_code.co_name == FORMING:
            return True
        frame = frame.f_back
    return False


def _stores_in_use(frame):
    from torch.distributed import Store

    stores = [process_groups.store_of(group) for group in process_groups.all_groups()]
    while frame is not None:  # add the stores that init_process_group is still waiting for
        stores += [value for value in list(frame.f_locals.values()) if isinstance(value, Store)]
        frame = frame.f_back
    return stores


def _root_store(store):
    from torch.distributed import PrefixStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _poison_store_file(path):
    """
    Replace a file by a symbolic link to itself, so that opening it fails at once in every process.
    """
    path = Path(path)
    loop = path.with_name(path.name + ".closed")
    try:
        loop.symlink_to(path.name)
    except FileExistsError:
        pass  # another rank has made the link
    try:
        os.replace(loop, path)
    except FileNotFoundError:
        pass  # the other rank has moved the link into place


def close_stores(frame: FrameType | None) -> list[Path]:
    """
    Make every store that this rank may be waiting for fail at its next poll.

    A thread that reads a FileStore whose file was removed waits until the file exists again, and
    nothing else can end that wait. So we put a link in the place of a missing file, too.

    Args:
        frame: The main thread's current frame.

    Returns:
        list[Path]: Links and folders that we made where nothing was. Remove them, in this order,
        once the rank is released.
    """
    from torch.distributed import FileStore

    put: list[Path] = []
    for store in _stores_in_use(frame):
        root = _root_store(store)
        root.set_timeout(timedelta(seconds=clocks.STORE_ENDS_S))
        path = root.path if isinstance(root, FileStore) else None  # type: ignore[attr-defined]
        if path is None:
            continue
        if os.path.exists(path):
            _poison_store_file(path)
        elif not os.path.islink(path):
            put += _make_folders(Path(path).parent)
            _poison_store_file(path)
            put.insert(0, Path(path))
    return put


def take_away(path: Path) -> None:
    """
    Remove a link or a folder that `close_stores` has made, once the rank is released.
    """
    try:
        path.unlink() if path.is_symlink() else path.rmdir()
    except OSError:
        pass  # another rank has removed it, or a program has put a file into the folder


def _make_folders(folder):
    """
    Make a missing folder and its missing parents. Return the new folders, the innermost first.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
    return missing


def release(spared: Set[tuple[int, int]], main_thread_id: int) -> list[Path]:
    """
    Release the main thread from any communication in which it waits.

    Args:
        spared: Set of sockets that are not torch's (see `SparedSockets.now`).
        main_thread_id: `threading.main_thread().ident`.

    Returns:
        list[Path]: Links and folders to remove once the rank is released (see `close_stores`).
    """
    if "torch.distributed" not in sys.modules:
        return []
    frame = sys._current_frames().get(main_thread_id)
    put = close_stores(frame)
    abort_nccl()
    if _is_forming_a_group(frame):
        connect_for_absent_peers(spared, frame)
    cut_group_sockets(spared)
    return put
