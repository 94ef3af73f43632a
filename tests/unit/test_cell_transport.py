"""
A cell's requests are sent and its replies read at once, and read as jupyter_client reads them.
"""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import zmq
from jupyter_client import jsonutil, session
from jupyter_client.session import Session
from tornado.ioloop import IOLoop
from zmq.eventloop.zmqstream import ZMQStream

from ddp_lessons.ranks.kernel.cell_transport import CellTransport, read_at_once, unpack

NUM_TURNS = 100
"""
Turns of an event loop in which it reads all that is there.
"""


@pytest.mark.parametrize("content", [{}, {"text": "2026-01-02", "nan": 1.5, "ä": ["ö", None]}])
def test_a_message_is_what_jupyter_client_makes_of_it(monkeypatch, content):
    """
    Header, parent, metadata and content; the dates with their zone.
    """
    # A Jupyter server turns this off for all of its process, which another test may have imported.
    monkeypatch.setattr(session, "extract_dates", jsonutil.extract_dates)
    theirs = Session()
    ours = Session()
    ours.unpack = unpack
    parent = theirs.msg("execute_request", content)
    parts = theirs.serialize(theirs.msg("execute_reply", content, parent=parent), ident=[b"x"])
    parts = parts[parts.index(b"<IDS|MSG>") + 1 :]
    ours.auth = theirs.auth = None
    one, other = ours.deserialize(parts), theirs.deserialize(parts)
    assert one == other
    assert one["header"]["date"].utcoffset() == other["header"]["date"].utcoffset()


class FakeClient:
    """
    What a request needs of ipyparallel's client, with a peer in place of a controller.
    """

    def __init__(self, loop, context):
        self.peer = context.socket(zmq.ROUTER)
        self.peer.bind("inproc://peer")
        self._mux_socket = context.socket(zmq.DEALER)
        self._mux_socket.routing_id = b"client"
        self._mux_socket.connect("inproc://peer")
        self._mux_stream = ZMQStream(self._mux_socket, loop)
        self._io_loop = loop
        self._engines = {0: "engine"}
        self._mux_socket.send(b"hello")
        assert self.peer.recv_multipart() == [b"client", b"hello"]
        self.replies, self.turns = [], []

    def reply(self, text):
        """
        Have the peer reply. Within a process the reply is there at once.
        """
        self.peer.send_multipart([b"client", text])

    def _dispatch_reply(self, parts):
        self.replies.append(bytes(parts[-1]))
        self.turns.append(self.turn)

    async def count_turns(self):
        """
        Let the event loop have its turns.
        """
        for turn in range(NUM_TURNS):
            self.turn = turn
            await asyncio.sleep(0)

    def send_execute_request(self, socket, *args, **options):
        """
        Send as ipyparallel's client does: straight, or by a stream.
        """
        socket.send_multipart([b"request"])
        future = Future()
        future.iopub_callbacks, future.output = [], Future()
        return future


@pytest.fixture
def client():
    """
    Give a client whose event loop runs in this thread, when it is asked to.
    """
    with zmq.Context() as context:
        loop = IOLoop(make_current=False)
        client = FakeClient(loop, context)
        yield client
        client._mux_stream.close(linger=0)
        client.peer.close(linger=0)
        loop.close()


def test_all_replies_that_are_there_are_read_in_one_turn(client):
    """
    The stream would read one a turn.
    """
    read_at_once(client)
    client._io_loop.run_sync(client.count_turns)
    for number in range(5):
        client.reply(b"%d" % number)
    client._io_loop.run_sync(client.count_turns)
    assert client.replies == [b"0", b"1", b"2", b"3", b"4"]
    assert len(set(client.turns)) == 1


def test_a_reply_that_comes_while_requests_are_sent_is_read(client):
    """
    Sending takes the sign that something has come: without a look, the loop would never read it.
    """
    read_at_once(client)
    client._io_loop.run_sync(client.count_turns)
    requests = CellTransport(client, "x = 1", {0: SimpleNamespace()}, is_brief=True)
    client.reply(b"early")
    requests._send([0], Future())
    client._io_loop.run_sync(client.count_turns)
    assert client.replies == [b"early"]
    assert client.peer.recv_multipart() == [b"client", b"request"]


def test_a_cell_overtakes_nothing_that_was_sent_before(client):
    """
    What views have sent may still be in the stream, which sends one message a turn.
    """
    for text in (b"push", b"pull"):
        client._mux_stream.send_multipart([text])
    requests = CellTransport(client, "x = 1", {0: SimpleNamespace()}, is_brief=True)
    requests._send([0], Future())
    client._io_loop.run_sync(client.count_turns)
    sent = [client.peer.recv_multipart()[1] for _ in range(3)]
    assert sent == [b"push", b"pull", b"request"]
