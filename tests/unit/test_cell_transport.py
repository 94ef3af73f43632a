"""
A cell's messages: they are parsed as jupyter_client parses them, and sent only to ranks that exist.
"""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from jupyter_client import jsonutil, session
from jupyter_client.session import Session

from ddp_lessons.errors import PrivateNameGone, RanksGone
from ddp_lessons.private.ipyparallel_client import content_of
from ddp_lessons.ranks.kernel.cell_transport import CellTransport, unpack


@pytest.mark.parametrize("content", [{}, {"text": "2026-01-02", "nan": 1.5, "ä": ["ö", None]}])
def test_a_message_is_what_jupyter_client_makes_of_it(monkeypatch, content):
    """
    A message is parsed as jupyter_client parses it: header, parent, metadata and content, and dates
    with their time zone.
    """
    # A Jupyter server turns this off for its whole process. Another test may have imported one.
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
    The part of ipyparallel's client that sends a request. It records which engines got one.
    """

    def __init__(self):
        self._engines = {0: "first", 1: "second"}
        self._mux_stream = object()
        self.sent = []

    def send_execute_request(self, stream, source, *, ident, **options):
        """
        Record a request, and return a future of its reply.
        """
        assert stream is self._mux_stream
        self.sent.append((source, ident))
        future = Future()
        future.iopub_callbacks, future.output = [], Future()
        return future


def test_a_cell_is_sent_to_each_rank_by_its_identity():
    """
    A request is sent to the engine's identity, because the controller does not know ranks.
    """
    client, sent = FakeClient(), Future()
    outputs = {rank: SimpleNamespace() for rank in (0, 1)}
    CellTransport(client, "x = 1", outputs, is_brief=True)._send([0, 1], sent)
    assert sent.result() is None
    assert client.sent == [("x = 1", b"first"), ("x = 1", b"second")]


def test_a_rank_that_has_left_meanwhile_is_named():
    """
    A rank that ends between the check before a cell and the cell's request is named in the error.
    """
    client, sent = FakeClient(), Future()
    del client._engines[1]
    CellTransport(client, "x = 1", {1: SimpleNamespace()}, is_brief=True)._send([1], sent)
    with pytest.raises(RanksGone, match=r"^Rank 1 has ended before the cell reached it"):
        sent.result()


def test_a_reply_without_content_is_passed_on():
    """
    A reply that lacks ipyparallel's private attribute reaches the thread that waits for the cell.
    Reading it there raises the error that names the attribute.
    """
    client, sent = FakeClient(), Future()
    transport = CellTransport(client, "x = 1", {0: SimpleNamespace(done=False)}, is_brief=True)
    transport._send([0], sent)
    transport.futures[0].set_result(SimpleNamespace())
    [(what, _, reply)] = transport.news(within_s=1)
    assert what == "reply"
    with pytest.raises(PrivateNameGone, match=r"ExecuteReply\(\)._content` is gone"):
        content_of(reply)
