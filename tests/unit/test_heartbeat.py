"""
A rank counts as present as soon as its heart subscribes, however long a heartbeat period is.
"""

import asyncio
import functools
import json

import zmq
import zmq.asyncio
from ipyparallel.controller.heartmonitor import HeartMonitor
from waiting import HANGS_AFTER_S
from zmq.eventloop.zmqstream import ZMQStream

from ddp_lessons.ranks.messages.rank_start import ENGINE_GIVEN_UP
from ddp_lessons.ranks.supervisor.heartbeat import PromptHeartMonitor

PERIOD_MS = 5000 * HANGS_AFTER_S  # so long that no heart waits for it


async def heart(context, ping_url, pong_url, name):
    """
    Answer pings, as the heart of a rank does.
    """
    with context.socket(zmq.SUB) as sub, context.socket(zmq.DEALER) as dealer:
        dealer.identity = name
        sub.subscribe(b"")
        sub.connect(ping_url)
        dealer.connect(pong_url)
        while True:
            await dealer.send_multipart(await sub.recv_multipart())


async def hearts_heard_of(names):
    """
    Start hearts one after the other, and return the order in which the controller is told of them.
    """
    plain, context = zmq.Context(), zmq.asyncio.Context()
    sockets = ping, pong, monitor = [plain.socket(k) for k in (zmq.XPUB, zmq.ROUTER, zmq.XPUB)]
    ping.setsockopt(zmq.XPUB_VERBOSE, 1)
    *urls, monitor_url = (
        f"tcp://127.0.0.1:{sock.bind_to_random_port('tcp://127.0.0.1')}" for sock in sockets
    )
    hub = context.socket(zmq.SUB)
    hub.subscribe(b"")
    hub.connect(monitor_url)
    monitored = PromptHeartMonitor(
        ping_stream=ZMQStream(ping),
        pong_stream=ZMQStream(pong),
        monitor_stream=ZMQStream(monitor),
        period=PERIOD_MS,
    )
    monitored.start()
    heard, tasks = [], []
    for name in names:
        tasks.append(asyncio.create_task(heart(context, *urls, name)))
        message = await asyncio.wait_for(hub.recv_multipart(), HANGS_AFTER_S)
        heard += json.loads(message[-1])["hearts"]
    monitored.caller.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert monitored.hearts == set(names)
    for stream in (monitored.ping_stream, monitored.pong_stream, monitored.monitor_stream):
        stream.close(linger=0)
    hub.close(linger=0)
    plain.term()
    context.term()
    return heard


def test_hearts_are_heard_of_when_they_subscribe():
    """
    Each heart is reported once, as soon as it subscribes, also after the first. ipyparallel's own
    monitor would let each wait for a period: 10 minutes here, and 0.1 to 0.2 s at every real start
    and replacement.
    """
    assert asyncio.run(hearts_heard_of([b"one", b"two", b"three"])) == ["one", "two", "three"]


def test_an_answer_to_an_old_beat_counts():
    """
    An answer to an old heartbeat counts, because on a crowded machine a rank may always be late by
    two.
    """
    told = []

    class Monitor(PromptHeartMonitor):
        def handle_new_hearts(self, hearts):
            told.append(set(hearts))
            self.hearts |= hearts

    monitor = Monitor(lifetime=9.0, last_ping=6.0)
    for beat in (b"3.0", b"6.0", b"9.0"):
        monitor.handle_pong([b"rank 3", beat])
    assert told == [{b"rank 3"}]


def _change_hearts(monitor, change, hearts):
    # Change the hearts as ipyparallel's method does, but without telling the controller.
    change(monitor.hearts, hearts)


def test_a_heart_that_was_given_up_is_told_so_when_it_beats_again(monkeypatch):
    """
    A heart that was given up is told so, once a heartbeat, when it answers again. Its host is back,
    but another rank has its place.
    """
    said = []
    for name, change in {"new_hearts": set.update, "heart_failure": set.difference_update}.items():
        tell_hub = functools.partialmethod(_change_hearts, change)
        monkeypatch.setattr(HeartMonitor, f"handle_{name}", tell_hub)
    monkeypatch.setattr(PromptHeartMonitor, "_say", lambda self, what: said.append(what))
    monitor = PromptHeartMonitor()
    monitor.handle_pong([b"rank 3", b"1.0"])
    assert monitor.hearts == {b"rank 3"}
    monitor.handle_heart_failure([b"rank 3"])
    monitor.responses = set()  # as at each heartbeat
    monitor.handle_pong([b"rank 2", b"9.0"])
    monitor.handle_pong([b"rank 3", b"9.0"])
    monitor.handle_pong(
        [b"rank 2", ENGINE_GIVEN_UP + b"rank 3"]
    )  # all hearts send back what they receive
    monitor.handle_pong([b"rank 3", ENGINE_GIVEN_UP + b"rank 3"])
    assert said == [ENGINE_GIVEN_UP + b"rank 3"]
    assert monitor.hearts == {b"rank 2"}
