"""
Free a rank whose main thread waits inside Gloo, NCCL or a store. Called from another thread.

Gloo's own `abort` and `shutdown` do not wake a waiting thread. Shutting down the sockets that
its process group has connected does: every wait then ends in a RuntimeError. NCCL has
`abort` for this. A FileStore has neither socket nor abort; it polls a file, so the file is made
impossible to open. A group that is being made waits for peers to connect, so somebody does.

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
from datetime import timedelta
from pathlib import Path
from typing import Any

from ddp_lessons.ranks.system import clocks

_FORMING = "_new_process_group_helper"
"""
The function of torch in which `init_process_group` and all kinds of `new_group` make the group.
"""
_MOST_PEERS = 128
_CONNECTED = (1, 8)  # ESTABLISHED and CLOSE_WAIT, as Linux numbers them: this end is not shut yet


def open_sockets():
    """
    Return all sockets of this process, each by its descriptor and its inode.

    The inode tells a socket from a later one, which is given the descriptor of one that was closed.

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
            continue  # the descriptor of the listing itself, closed by now
    return found


class SparedSockets:
    """
    Know which sockets of this process are not torch's: those that are open now, and all that Python
    code makes from now on.

    A learner's own socket (a web request, a logger) is a Python object; Gloo's, TCPStore's and
    NCCL's are not. To look for them among all objects would take long, and finds some half made.
    """

    def __init__(self):
        self._open_before = open_sockets()
        self._made = {}  # by id, since a subclass may be as odd as to have no hash
        make = socket.socket.__init__

        @functools.wraps(make)
        def noting(sock, *args, **kwargs):
            make(sock, *args, **kwargs)
            key = id(sock)
            self._made[key] = weakref.ref(sock, lambda _: self._made.pop(key, None))

        socket.socket.__init__ = noting  # type: ignore

    def now(self):
        """
        Return those that are open now, as `open_sockets` does.
        """
        made = [reference() for reference in list(self._made.values())]
        ours = {socket.socket.fileno(sock) for sock in made if sock is not None}
        return {one for one in open_sockets() if one in self._open_before or one[0] in ours}


def cut_group_sockets(spared):
    """
    Shut down every connected TCP socket that torch opened in this process.

    Args:
        spared: Sockets that are not torch's: see `SparedSockets.now`.

    Returns:
        int: Number of sockets that were shut down.
    """
    theirs = open_sockets() - spared
    return sum(_through(fd, _shut_down) for fd, _ in theirs if _through(fd, _is_connected))


def _through(fd, work):
    # A copy of the descriptor is closed again; the socket stays torch's.
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
        return state in _CONNECTED  # not listening: closing such a one kills the process
    sock.getpeername()  # raises unless it is connected
    return True


def _shut_down(sock):
    sock.shutdown(socket.SHUT_RDWR)
    return True


def connect_for_absent_peers(spared, frame):
    """
    End a wait of Gloo's for peers to connect, which knows no socket that could be cut.

    Of two ranks, one connects to the other and says which of its expected peers it is. A rank that
    left or died before it did so is waited for until the group's time limit. So we say that we are
    each of them, and hang up.

    Args:
        spared: Sockets that are not torch's: see `SparedSockets.now`.
        frame: The main thread's current frame.

    Returns:
        int: Number of sockets that waited for peers.
    """
    ports = {getattr(_root_store(store), "port", None) for store in _stores_in_use(frame)}
    addresses = [_through(fd, _listens_at) for fd, _ in open_sockets() - spared]
    expecting = [found for found in addresses if found and found[1][1] not in ports]
    for family, address in expecting:
        for number in range(_MOST_PEERS):
            # Once the rank is freed, its socket is gone: the rest are refused.
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
        if frame.f_code.co_name == _FORMING:
            return True
        frame = frame.f_back
    return False


def _stores_in_use(frame):
    from torch.distributed import Store, distributed_c10d

    stores = [pair[1] for pair in distributed_c10d._world.pg_map.values()]
    while frame is not None:  # a store that init_process_group is still waiting for
        stores += [value for value in list(frame.f_locals.values()) if isinstance(value, Store)]
        frame = frame.f_back
    return stores


def _root_store(store):
    from torch.distributed import PrefixStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _lock_out(path):
    """
    Put a link that leads to itself in a file's place: opening it fails at once, for everybody.
    """
    path = Path(path)
    loop = path.with_name(path.name + ".closed")
    try:
        loop.symlink_to(path.name)
    except FileExistsError:
        pass  # another rank was faster
    try:
        os.replace(loop, path)
    except FileNotFoundError:
        pass  # that other rank has moved it into place


def close_stores(frame):
    """
    Make every store that this rank may be waiting for fail its next look.

    Whoever reads a FileStore whose file was removed waits until there is one again, which nobody
    else could end: so a link is put there as well.

    Args:
        frame: The main thread's current frame.

    Returns:
        list[Path]: Links and folders that were put where nothing was. Remove them, in this order,
        once the rank is free.
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
            _lock_out(path)
        elif not os.path.islink(path):
            put += _make_folders(Path(path).parent)
            _lock_out(path)
            put.insert(0, Path(path))
    return put


def take_away(path):
    """
    Remove a link or a folder that `close_stores` has put, once the rank is free.
    """
    try:
        path.unlink() if path.is_symlink() else path.rmdir()
    except OSError:
        pass  # another rank was faster, or somebody has put something in


def _make_folders(folder):
    """
    Make a folder that is gone, and those above it. Returns those that were made, from within.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
    return missing


def abort_nccl():
    """
    Abort every NCCL communicator of this process, which frees a stream that waits for a peer.

    Several are aborted together, newest first, as torch does it: one that is aborted alone may
    wait for another.
    """
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    # By what carries the GPU's tensors: a group that was made without a name has one, too.
    groups = [g for g in list(world.pg_map) if "cuda:nccl" in world.pg_backend_config.get(g, "")]
    groups.sort(key=lambda group: world.pg_names.get(group, ""), reverse=True)
    backends: list[Any] = [group._get_backend(_cuda()) for group in groups]
    if len(backends) > 1:
        backends[0]._group_start()
    try:
        for backend in backends:
            backend.abort()
    finally:
        if len(backends) > 1:
            backends[0]._group_end()


def _cuda():
    import torch

    return torch.device("cuda")


def release(spared, main_thread_id):
    """
    Free the main thread from whatever communication it waits in.

    Args:
        spared: As `cut_group_sockets`.
        main_thread_id: `threading.main_thread().ident`.

    Returns:
        list[Path]: As `close_stores`.
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
