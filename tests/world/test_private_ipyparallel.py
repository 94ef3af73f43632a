"""
Private names of ipyparallel, ipykernel and IPython: each behaves as the course relies on.

The tests share two ranks, which the last test ends.
"""

import asyncio
import signal
import sys
import threading
from concurrent.futures import Future

import ipyparallel as ipp
import pytest
from ipyparallel.cluster.launcher import LocalProcessLauncher
from ipyparallel.engine.app import IPEngine
from ipyparallel.error import RemoteError
from tornado.ioloop import IOLoop
from waiting import HANGS_AFTER_S, wait_until

from ddp_lessons import start_ranks, stop_ranks
from ddp_lessons.private import ipyparallel_client, ipyparallel_cluster
from ddp_lessons.ranks.kernel.agent_client import state_in
from ddp_lessons.ranks.kernel.cells import run_cell
from ddp_lessons.ranks.messages.report import report_in
from ddp_lessons.ranks.messages.snapshot import AgentState

WAITS = """
import os, time
while not os.path.exists({path!r}):
    time.sleep(0.01)
"""
STREAMS = """
import os, stat, sys
from ddp_lessons.private import ipykernel_streams as streams
out = sys.stdout
assert streams.own_descriptor(out) == 1
pipe, log = (os.fstat(of(out)) for of in (streams.pipe_of, streams.log_descriptor))
assert stat.S_ISFIFO(pipe.st_mode)
assert pipe.st_ino == os.fstat(1).st_ino != log.st_ino
out.flush()
assert not streams.has_unsent_text(out)
print("unsent", end="")
assert streams.has_unsent_text(out)
out.flush()
assert not streams.has_unsent_text(out)
assert streams.is_of_this_process(out)
child = os.fork()
if child == 0:
    os._exit(7 if streams.is_of_this_process(out) else 0)
assert os.waitpid(child, 0)[1] == 0
"""
SHOWS = """
from ddp_lessons.private.ipykernel_streams import show_error_lines
sent, shell = [], get_ipython()
session = shell.displayhook.session
session.send = lambda socket, kind, content, *args, **options: sent.append(content)
try:
    show_error_lines(shell, ValueError, ValueError("told"), ("one", "two"))
finally:
    del session.send
assert sent == [{"ename": "ValueError", "evalue": "told", "traceback": ["one", "two"]}], sent
"""


@pytest.fixture(scope="module")
def ranks():
    """
    Start two ranks for all tests, with output as in a kernel: with pytest's variable, ipykernel
    would leave the descriptors as they are.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST")
        ranks = start_ranks(2)
    yield ranks
    stop_ranks()


@pytest.fixture
def client(ranks):
    """
    Return the ranks' client.
    """
    return ranks.client


@pytest.mark.parametrize("cell", [STREAMS, SHOWS], ids=["streams", "error lines"])
def test_names_of_ipykernel_on_a_rank(ranks, cell):
    """
    A rank's output goes through a pipe that can be read, a child knows that the stream is its
    parent's, and an error is shown as the lines that it is given.
    """
    run_cell(ranks, cell)


def test_a_request_goes_to_a_rank_s_control_channel(client):
    """
    The controller's name of a rank leads a control request to this rank, whose answer comes back.
    """
    assert ipyparallel_client.identity_of(client, 2) is None
    identity = ipyparallel_client.identity_of(client, 1)
    reply = ipyparallel_client.send_control(client, identity, "state_request", {})
    assert isinstance(state_in(reply.result(HANGS_AFTER_S)), AgentState)


def test_a_function_runs_in_the_client_s_thread(client):
    """
    The client's thread runs what it is given, and is alive.
    """
    threads = Future()
    ipyparallel_client.run_in_client_thread(
        client, lambda given: threads.set_result((given, threading.current_thread())), "given"
    )
    given, thread = threads.result(HANGS_AFTER_S)
    assert given == "given"
    assert thread is not threading.main_thread()
    assert ipyparallel_client.client_thread_is_alive(client)


def test_a_cell_goes_over_the_shell_channel_and_its_reply_has_the_report(client, tmp_path):
    """
    A cell that is sent to one rank is unanswered until its reply comes, and the reply's content
    holds the rank agent's report.
    """
    ends = tmp_path / "ends"
    stream = ipyparallel_client.cell_stream(client)
    assert ipyparallel_client.socket_of_view(client.direct_view([0])) is stream
    identity = ipyparallel_client.identity_of(client, 0).encode()
    cell = WAITS.format(path=str(ends))
    future = client.send_execute_request(stream, cell, silent=False, ident=identity)
    wait_until(
        lambda: ipyparallel_client.has_unanswered_requests(client, 0), HANGS_AFTER_S, "the request"
    )
    assert not ipyparallel_client.has_unanswered_requests(client, 1)
    ends.touch()
    content = ipyparallel_client.content_of(future.result(HANGS_AFTER_S))
    assert content["status"] == "ok"
    assert report_in(content) is not None
    assert not ipyparallel_client.has_unanswered_requests(client, 0)


def test_a_reply_s_handler_can_end_the_request(client, monkeypatch):
    """
    A handler that is put in the place of the client's gets the reply, and can end the request with
    an error.
    """

    def refuse(message):
        request = message["parent_header"]["msg_id"]
        error = RemoteError("Refused", "by us", "", {"engine_id": 0, "method": "apply"})
        ipyparallel_client.end_request(client, request, error)

    monkeypatch.setitem(ipyparallel_client.reply_handlers(client), "apply_reply", refuse)
    with pytest.raises(RemoteError, match="by us"):
        client.direct_view(0).apply_async(int).get(HANGS_AFTER_S)


def test_the_thread_of_a_cluster_is_ended():
    """
    The thread that a cluster makes for its coroutines is ended. Without one, nothing happens.
    """
    cluster, before = ipp.Cluster(), set(threading.enumerate())
    ipyparallel_cluster.end_cluster_thread(cluster, begins_within_s=HANGS_AFTER_S)

    async def call():
        with pytest.raises(AttributeError):  # it has no controller
            cluster.connect_client_sync()

    asyncio.run(call())
    assert set(threading.enumerate()) - before
    ipyparallel_cluster.end_cluster_thread(cluster, begins_within_s=HANGS_AFTER_S)
    assert not set(threading.enumerate()) - before


def test_the_end_of_a_launcher_s_process_is_seen(tmp_path):
    """
    A launcher's process has not ended while it waits for a file, and has ended then.
    """
    ends = tmp_path / "ends"
    launcher = LocalProcessLauncher(
        cmd_and_args=[sys.executable, "-c", WAITS.format(path=str(ends))], work_dir=str(tmp_path)
    )
    launcher.output_file = str(tmp_path / "output")
    launcher.start()
    assert not ipyparallel_cluster.has_ended(launcher)
    ends.touch()
    wait_until(lambda: ipyparallel_cluster.has_ended(launcher), HANGS_AFTER_S, "the process's end")
    asyncio.run(launcher.join(HANGS_AFTER_S))


@pytest.mark.filterwarnings("ignore:add_callback_from_signal:DeprecationWarning")
def test_an_engine_stops_its_loop():
    """
    An engine that is told to stop stops its event loop, which has its turn first.
    """
    engine, loop = IPEngine(), IOLoop(make_current=False)
    engine.loop = loop
    ipyparallel_cluster.stop_engine(engine, signal.SIGTERM, None)
    loop.start()
    loop.close()


def test_a_death_is_reported(ranks, client, monkeypatch):
    """
    The controller tells clients of a rank whose death the kernel has reported, and the client calls
    the handler that was put in place of its own. Once it is closed, its thread has ended.
    """
    left = Future()
    handlers = ipyparallel_client.notification_handlers(client)
    monkeypatch.setitem(
        handlers, "unregistration_notification", lambda message: left.set_result(message["content"])
    )
    ipyparallel_client.report_death(client, 1)
    assert left.result(HANGS_AFTER_S)["id"] == 1
    stop_ranks()
    assert not ipyparallel_client.client_thread_is_alive(client)
