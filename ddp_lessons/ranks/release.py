"""
Free a rank whose main thread waits inside Gloo, NCCL or a store. Called from another thread.

Gloo's own `abort` and `shutdown` do not wake a waiting thread. Shutting down the sockets that
its process group has connected does: every wait then ends in a RuntimeError. NCCL has
`abort` for this. A FileStore has neither socket nor abort; it polls a file, so the file is made
impossible to open.

Lesson: 02_collectives.
"""

import gc
import os
import socket
import stat
import sys
from datetime import timedelta
from pathlib import Path

_SHORTEST = timedelta(milliseconds=1)


def open_sockets():
    """
    Return the descriptors of all sockets of this process.
    """
    found = set()
    for name in os.listdir("/proc/self/fd" if sys.platform.startswith("linux") else "/dev/fd"):
        fd = int(name)
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.add(fd)
        except OSError:
            continue  # the descriptor of the listing itself, closed by now
    return found


def _python_sockets():
    # A learner's own socket (a web request, a logger) is a Python object; Gloo's, TCPStore's and
    # NCCL's are not. `type(...) is` matters: isinstance would wake lazy proxies.
    return {thing.fileno() for thing in gc.get_objects() if issubclass(type(thing), socket.socket)}


def cut_group_sockets(spared):
    """
    Shut down every connected TCP socket that torch opened in this process.

    Args:
        spared: Descriptors that are not torch's: those that were open before torch had a group.

    Returns:
        int: Number of sockets that were shut down.
    """
    num_cut = 0
    for fd in open_sockets() - set(spared) - _python_sockets():
        try:
            with socket.socket(fileno=os.dup(fd)) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                copy.getpeername()  # a listening socket has no peer; closing it kills the process
                copy.shutdown(socket.SHUT_RDWR)
                num_cut += 1
        except OSError:
            continue  # listening, closed meanwhile, or not connected yet
    return num_cut


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

    Args:
        frame: The main thread's current frame.
    """
    from torch.distributed import FileStore

    for store in _stores_in_use(frame):
        root = _root_store(store)
        root.set_timeout(_SHORTEST)
        path = root.path if isinstance(root, FileStore) else None  # type: ignore[attr-defined]
        if path is not None and os.path.exists(path):
            _lock_out(path)


def abort_nccl():
    """
    Abort every NCCL communicator of this process, which frees a stream that waits for a peer.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    for group, (backend, _) in list(distributed_c10d._world.pg_map.items()):
        if backend == dist.Backend.NCCL:
            group._get_backend(_cuda()).abort()


def _cuda():
    import torch

    return torch.device("cuda")


def release(spared, main_thread_id):
    """
    Free the main thread from whatever communication it waits in.

    Args:
        spared: Descriptors of sockets that are not torch's.
        main_thread_id: `threading.main_thread().ident`.
    """
    if "torch.distributed" not in sys.modules:
        return
    frame = sys._current_frames().get(main_thread_id)
    close_stores(frame)
    abort_nccl()
    cut_group_sockets(spared)
