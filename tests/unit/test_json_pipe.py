"""
The JSON pipe between kernel and supervisor delivers whole messages, however the socket splits them.
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
    Give two connected JSON pipes, and close them after the test.
    """
    left, right = json_pipe_pair()
    yield left, right
    left.close()
    right.close()


def receive(link, num_messages):
    """
    Receive messages until there are `num_messages`, and return them.
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
    A pipe carries messages in both directions: orders one way, events the other.
    """
    left, right = ends
    assert left.send(do="signal", ranks=[0, 1], signum=9)
    assert right.send(at="died", rank=1, code=-9)
    assert receive(right, 1) == [{"do": "signal", "ranks": [0, 1], "signum": 9}]
    assert receive(left, 1) == [{"at": "died", "rank": 1, "code": -9}]


def test_link_puts_split_messages_together(ends):
    """
    Split messages are reassembled, because a stream socket may deliver single bytes, or many
    messages at once.
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
    A message may be larger than one read: the environment of a rank alone can fill a socket's
    buffer.
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
    Both ends notice that the other end has closed: `receive` returns None, also after half a
    message, and `send` returns False instead of an error.
    """
    left, right = json_pipe_pair()
    left.sock.sendall(b'{"do": "sto')
    if how == "closed":
        left.close()
    else:  # as after a kill: the system closes the socket without a shutdown
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
    `close` ends a `receive` in another thread. The supervisor client's thread waits there, and must
    end when the ranks are stopped.
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
    Messages of many threads stay whole: cells, the supervisor client and the launcher each send
    from their own threads.
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
    A pipe has no name and no port, so that no other user of a shared server can connect to it.
    """
    for link in ends:
        assert link.sock.family == socket.AF_UNIX
        assert link.sock.getsockname() in ("", b"")
        assert link.fileno() == link.sock.fileno()


def test_link_wraps_a_descriptor(ends):
    """
    A pipe can wrap a file descriptor, because the supervisor gets its end as a number on its
    command line.
    """
    left, right = ends
    with socket.socket(fileno=os.dup(right.fileno())) as copy:
        assert left.send(do="stop")
        assert receive(JsonPipe(copy), 1) == [{"do": "stop"}]
