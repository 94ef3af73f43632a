"""
Release a thread that waits inside torch: which sockets are cut, which are spared, and that the
thread returns.

Two ranks are two threads of this process, so every wait can be watched from here.
"""

import os
import socket
import sys
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons.ranks.rank.release import (
    SparedSockets,
    close_stores,
    connect_for_absent_peers,
    cut_group_sockets,
    open_sockets,
    release,
)

LIMIT_S = 1800.0
"""
How long a wait takes if it is not released. A thread that returns before pytest gives up was
released.
"""


class Waiting:
    """
    A thread that runs a function which waits, and the function's error.
    """

    def __init__(self, work, *args):
        self.error = None
        self.thread = threading.Thread(target=self._run, args=(work, *args), daemon=True)
        self.thread.start()

    def _run(self, work, *args):
        try:
            work(*args)
        except Exception as error:
            self.error = error

    def frame_in(self, function):
        """
        Return the thread's frame once it stays at one place of a function of this file.
        """
        seen = []

        def look():
            frame = sys._current_frames().get(self.thread.ident)
            if frame is None or frame.f_code.co_name != function:
                return None
            seen.append(frame.f_lasti)
            return frame if seen[-5:] == 5 * [frame.f_lasti] else None

        return wait_until(look, HANGS_AFTER_S, f"a thread to wait in {function}")

    def comes_back(self):
        """
        Assert that the thread ends.
        """
        self.thread.join(HANGS_AFTER_S)
        assert not self.thread.is_alive(), "it still waits"


def connected_pair(family=socket.AF_INET):
    """
    Return two connected TCP sockets, and the one that listens.
    """
    listener = socket.create_server(("localhost", 0), family=family)
    client = socket.create_connection(listener.getsockname()[:2])
    server, _ = listener.accept()
    return client, server, listener


def is_open(sock):
    """
    Return whether a socket's other end is still open.
    """
    sock.setblocking(False)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True


@pytest.fixture
def spared(monkeypatch):
    """
    Return a SparedSockets: the rank agent's record of the sockets that are not torch's.
    """
    monkeypatch.setattr(socket.socket, "__init__", socket.socket.__init__)
    return SparedSockets()


def test_cut_group_sockets_cuts_what_torch_would_have(spared):
    """
    A socket that C++ code holds is a descriptor without a Python object. It is cut, and both ends
    notice.
    """
    client, server, listener = connected_pair()
    fd = client.detach()
    assert cut_group_sockets(spared.now()) == 1
    assert not is_open(server)
    os.close(fd)
    server.close()
    listener.close()


def test_cut_group_sockets_spares_the_learners_own(spared):
    """
    A learner's own socket, such as a logger's connection or a download, is a Python socket. It is
    spared, because it does not belong to the group.
    """
    before = open_sockets()
    sockets = connected_pair()
    assert {fd for fd, _ in open_sockets() - before} == {sock.fileno() for sock in sockets}
    assert cut_group_sockets(spared.now()) == 0
    assert is_open(sockets[0])
    assert is_open(sockets[1])
    for sock in sockets:
        sock.close()


def test_spared_sockets_forget_what_is_gone(spared):
    """
    Descriptors are reused, so a closed Python socket must not spare the next socket of its number,
    which may be Gloo's.
    """
    client, server, listener = connected_pair()
    fd = client.detach()
    descriptors = {fd for fd, _ in spared.now()}
    assert fd not in descriptors
    assert server.fileno() in descriptors
    assert cut_group_sockets(spared.now()) == 1
    os.close(fd)
    server.close()
    listener.close()
    del client, server, listener
    assert spared.now() <= spared._open_before


def test_a_socket_that_was_closed_spares_none_that_comes_after_it(monkeypatch):
    """
    A socket that was open before torch's is closed, and Gloo's next socket gets its descriptor.
    That socket must be cut.
    """
    monkeypatch.setattr(socket.socket, "__init__", socket.socket.__init__)
    with socket.socket() as sock:
        number = sock.fileno()
        spared = SparedSockets()
        client, server, listener = connected_pair()
    fd = client.detach()
    os.dup2(fd, number)
    os.close(fd)
    assert cut_group_sockets(spared.now()) == 1
    os.close(number)
    server.close()
    listener.close()


def test_cut_group_sockets_spares_a_subclass_that_cannot_be_hashed(spared):
    """
    A learner's class of sockets may be unhashable; the rank is released nevertheless.
    """

    class Odd(type):
        def __eq__(cls, other):
            raise ValueError

        __hash__ = None

    class OddSocket(socket.socket, metaclass=Odd):
        pass

    client, server, listener = connected_pair()
    own = OddSocket(fileno=client.detach())
    assert cut_group_sockets(spared.now()) == 0
    assert is_open(own)
    for sock in (own, server, listener):
        sock.close()


def test_cut_group_sockets_spares_what_listens():
    """
    Gloo's listening socket is spared, since closing it kills the process.
    """
    before = open_sockets()
    fd = socket.create_server(("127.0.0.1", 0)).detach()
    assert cut_group_sockets(before) == 0
    with socket.socket(fileno=fd) as listener:
        socket.create_connection(listener.getsockname()).close()


def test_cut_group_sockets_spares_what_it_is_told_to():
    """
    Sockets that were open before the group are spared: ZeroMQ's are C++, too.
    """
    client, server, listener = connected_pair()
    fd = client.detach()
    assert cut_group_sockets(open_sockets()) == 0
    assert is_open(server)
    os.close(fd)
    server.close()
    listener.close()


def test_cut_group_sockets_spares_sockets_of_the_file_system():
    """
    Unix sockets are spared: they belong to ZeroMQ, to the supervisor client or to the learner, but
    never to Gloo.
    """
    before = open_sockets()
    left, right = socket.socketpair(socket.AF_UNIX)
    fd = left.detach()
    assert cut_group_sockets(before) == 0
    assert is_open(right)
    os.close(fd)
    right.close()


@pytest.fixture
def gloo_pair(monkeypatch):
    """
    Return two ranks of a Gloo group, and the sockets that were open before it.
    """
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    before = open_sockets()
    store, groups = dist.HashStore(), {}

    def join(rank):
        groups[rank] = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=LIMIT_S))

    joining = [Waiting(join, rank) for rank in range(2)]
    for each in joining:
        each.comes_back()
        assert each.error is None
    yield groups, before
    groups.clear()


@pytest.mark.parametrize("name", ["allreduce", "barrier", "recv", "broadcast"])
def test_release_frees_a_rank_that_waits_in_gloo(gloo_pair, name):
    """
    `release` releases a rank that waits in Gloo, which torch's own `abort` and `shutdown` do not.
    The rank gets a RuntimeError and keeps its data.
    """
    groups, before = gloo_pair
    tensor = torch.ones(3)

    def wait_for_the_other():
        group = groups[1]
        if name == "barrier":
            group.barrier().wait()
        elif name == "recv":
            group.recv([tensor], 0, 0).wait()
        else:
            getattr(group, name)([tensor]).wait()

    waiting = Waiting(wait_for_the_other)
    waiting.frame_in("wait_for_the_other")
    release(before, waiting.thread.ident)
    waiting.comes_back()
    assert isinstance(waiting.error, RuntimeError)
    assert tensor.shape == (3,)


@pytest.mark.parametrize("prefixes", [(), ("default",), ("default", "0")])
def test_close_stores_frees_a_rank_that_waits_in_a_file_store(tmp_path, prefixes):
    """
    `init_process_group` waits in `store.get` for ranks that never come. A FileStore has no socket
    to cut, but closing the store releases the rank.
    """
    store = dist.FileStore(str(tmp_path / "store"), 2)
    for prefix in prefixes:
        store = dist.PrefixStore(prefix, store)
    store.set_timeout(timedelta(seconds=LIMIT_S))
    store.set("present", "1")

    def get_what_never_comes(store):
        store.get("never")

    waiting = Waiting(get_what_never_comes, store)
    close_stores(waiting.frame_in("get_what_never_comes"))
    waiting.comes_back()
    assert isinstance(waiting.error, RuntimeError)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_close_stores_frees_a_rank_whose_file_is_gone(tmp_path, what):
    """
    A learner may delete the file too early. FileStore waits for it until its time limit; closing
    the store releases the rank.
    """
    file = tmp_path / "mine" / "store"
    file.parent.mkdir()
    store = dist.FileStore(str(file), 2)
    store.set_timeout(timedelta(seconds=LIMIT_S))
    store.set("present", "1")
    file.unlink()
    if what == "folder":
        file.parent.rmdir()

    def get_what_never_comes(store):
        store.get("never")

    waiting = Waiting(get_what_never_comes, store)
    put = close_stores(waiting.frame_in("get_what_never_comes"))
    waiting.comes_back()
    assert isinstance(waiting.error, RuntimeError)
    assert put == ([file] if what == "file" else [file, file.parent])


def test_close_stores_twice_and_on_a_store_without_a_file(tmp_path):
    """
    Several ranks share a store's file and are released at the same time, so a store may be closed
    twice. A HashStore has no file.
    """
    store, memory = dist.FileStore(str(tmp_path / "store"), 1), dist.HashStore()
    store.set("present", "1")
    frame = sys._getframe()
    close_stores(frame)
    close_stores(frame)
    with pytest.raises(OSError, match="symbolic links"):
        open(tmp_path / "store").close()
    assert memory.num_keys() == 0


def test_release_frees_a_rank_that_waits_in_a_tcp_store():
    """
    With join=False a learner may use `tcp://`, whose client waits on a socket of torch's.
    """
    before = open_sockets()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = dist.TCPStore("127.0.0.1", server.port, timeout=timedelta(seconds=LIMIT_S))

    def get_what_never_comes(store):
        store.get("never")

    waiting = Waiting(get_what_never_comes, store)
    waiting.frame_in("get_what_never_comes")
    release(before, waiting.thread.ident)
    waiting.comes_back()
    assert isinstance(waiting.error, RuntimeError)


class StoreOfAStraggler(dist.Store):
    """
    A store in which a rank publishes its address, and never finds those of the others.
    """

    def __init__(self, store, is_over):
        super().__init__()
        self.store = store
        self.has_told = threading.Event()
        self._is_over = is_over

    def set(self, key, value):
        """
        Set a key, and note that it was set.
        """
        self.store.set(key, value)
        self.has_told.set()

    def wait(self, *args):
        """
        Wait until the test is over.
        """
        self._is_over.wait()
        raise RuntimeError("the straggler never comes")


def test_a_rank_that_waits_for_a_peer_to_connect_is_freed(monkeypatch):
    """
    The peer died or left between the two steps of connecting, so there is no connection to cut.

        The ports decide which of two ranks connects, so the test tries until it is the other rank.
    """
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    is_over = threading.Event()

    def make_group(store, rank):
        dist.ProcessGroupGloo(store, rank, 2)

    for _ in range(40):
        store = dist.HashStore()
        straggler_store = StoreOfAStraggler(store, is_over)
        straggler = Waiting(make_group, straggler_store, 1)
        assert straggler_store.has_told.wait(HANGS_AFTER_S)
        before = open_sockets()
        early = Waiting(make_group, store, 0)
        # Every socket that listens now and did not before is this rank's, because the straggler's
        # was open before.
        while early.thread.is_alive() and not connect_for_absent_peers(before, sys._getframe()):
            early.thread.join(0.01)
        early.comes_back()
        if early.error:  # a rank that connects has a group, and no error
            break
    assert isinstance(early.error, RuntimeError)
    is_over.set()
    straggler.comes_back()


def test_a_rank_that_is_freed_halfway_refuses_the_other_peers():
    """
    A rank that is released while it connects gives up its group when the first peer hangs up. Its
    socket then refuses the other peers.
    """
    before = open_sockets()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def give_up_at_the_first():
            with listener.accept()[0]:
                listener.close()

        group = Waiting(give_up_at_the_first)
        assert connect_for_absent_peers(before, sys._getframe()) == 1
    group.comes_back()


def test_a_store_that_listens_is_no_gloo_socket():
    """
    A TCPStore that listens is not taken for Gloo: its socket must not be sent Gloo's numbers.
    """
    before = open_sockets()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert store.port > 0
    assert connect_for_absent_peers(before, sys._getframe()) == 0
    store.set("still", "there")
    assert store.get("still") == b"there"
