"""
The line between kernel and supervisor: whole messages, whatever the socket does to them.
"""

import json
import os
import socket
import threading

import pytest
from waiting import HANGS_AFTER_S

from ddp_lessons.ranks.system.json_pipe import JsonPipe, json_pipe_pair


@pytest.fixture
def ends():
    """
    Two connected links, closed in the end.
    """
    left, right = json_pipe_pair()
    yield left, right
    left.close()
    right.close()


def receive(link, num_messages):
    """
    Receive until there are that many messages, and return them.
    """
    link.sock.settimeout(HANGS_AFTER_S)  # a lost message is a failure, not a hang
    found = []
    while len(found) < num_messages:
        messages = link.receive()
        assert messages is not None, f"closed after {len(found)} of {num_messages} messages"
        found += messages
    return found


def test_link_goes_both_ways(ends):
    """
    Orders go one way, events the other, on one line.
    """
    left, right = ends
    assert left.send(do="signal", ranks=[0, 1], signum=9)
    assert right.send(at="died", rank=1, code=-9)
    assert receive(right, 1) == [{"do": "signal", "ranks": [0, 1], "signum": 9}]
    assert receive(left, 1) == [{"at": "died", "rank": 1, "code": -9}]


def test_link_puts_split_messages_together(ends):
    """
    A stream socket knows no messages: they come byte by byte, or many at once.
    """
    left, right = ends
    orders = [{"do": f"order {i}", "text": "no\nline end, and ü"} for i in range(3)]
    data = b"".join(json.dumps(order).encode() + b"\n" for order in orders)
    got = []
    for i in range(len(data)):
        left.sock.sendall(data[i : i + 1])
        got += right.receive()
    assert got == orders
    left.sock.sendall(data)
    assert right.receive() == orders


def test_link_carries_a_message_larger_than_a_read(ends):
    """
    The environment of a rank alone can fill a socket's buffer.
    """
    left, right = ends
    text = "x" * 1_000_000
    sender = threading.Thread(target=left.send, kwargs={"text": text})
    sender.start()
    assert receive(right, 1) == [{"text": text}]
    sender.join()


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_link_tells_of_the_other_ends_end(how):
    """
    The reader hears of it, also with half a message read; the sender gets False, not an error.
    """
    left, right = json_pipe_pair()
    left.sock.sendall(b'{"do": "sto')
    if how == "closed":
        left.close()
    else:  # the kernel closes a killed process's sockets without a shutdown
        left.sock.close()
    assert right.receive() == []
    assert right.receive() is None
    assert right.receive() is None
    assert not right.send(at="died")
    right.close()
    right.close()
    assert not right.send(at="died")
    assert right.receive() is None


def test_link_close_wakes_its_own_reader(ends):
    """
    The supervisor client's thread waits in `receive`; when the ranks are stopped it must come back and end.
    """
    left, _ = ends
    got = []
    reader = threading.Thread(target=lambda: got.append(left.receive()))
    reader.start()
    left.close()
    reader.join(5)
    assert got == [None]


def test_link_keeps_messages_of_many_threads_whole(ends):
    """
    Cells, the supervisor client and the launcher send from threads of their own.
    """
    left, right = ends
    num_threads, num_messages = 8, 200

    def send(thread):
        for i in range(num_messages):
            left.send(thread=thread, i=i, padding="p" * (i * 37 % 5000))

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(num_threads)]
    for thread in threads:
        thread.start()
    messages = receive(right, num_threads * num_messages)
    for thread in threads:
        thread.join()
    for thread in range(num_threads):
        assert [m["i"] for m in messages if m["thread"] == thread] == list(range(num_messages))


def test_link_has_no_name_and_no_port(ends):
    """
    Nobody else on a shared server can connect to a socket pair.
    """
    for link in ends:
        assert link.sock.family == socket.AF_UNIX
        assert link.sock.getsockname() in ("", b"")
        assert link.fileno() == link.sock.fileno()


def test_link_wraps_a_descriptor(ends):
    """
    The supervisor gets its end as a number on its command line.
    """
    left, right = ends
    with socket.socket(fileno=os.dup(right.fileno())) as copy:
        assert left.send(do="stop")
        assert receive(JsonPipe(copy), 1) == [{"do": "stop"}]
