"""
The controller's heartbeat, which registers a rank as soon as the rank listens to heartbeats.

ipyparallel's own heart monitor sends a heartbeat to all ranks once a period, and counts the answers
at the next period. So a rank that is ready waits for one or two periods. Here the publisher sees
each subscription, sends a heartbeat at once, and reports the first answer.

A rank that has failed to answer for so long that it was given up stays given up. When it answers
again, the controller sends it a message that says so. "Heart" is ipyparallel's word for the part of
a rank that answers heartbeats.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Any

import zmq
from ipyparallel.controller.app import IPController
from ipyparallel.controller.heartmonitor import HeartMonitor
from ipyparallel.util import bind, connect, set_hwm
from zmq.eventloop.zmqstream import ZMQStream

from ddp_lessons.ranks.messages.rank_start import ENGINE_GIVEN_UP
from ddp_lessons.ranks.system import clocks


class PromptHeartMonitor(HeartMonitor):
    """
    A HeartMonitor that also sends a heartbeat when a heart subscribes.

    Its `ping_stream` is a ZeroMQ socket of type XPUB with XPUB_VERBOSE set.
    """

    _is_asking_soon = False
    _given_up: frozenset[bytes] = frozenset()

    def start(self) -> None:
        """
        Start to send heartbeats, and to receive subscriptions.
        """
        super().start()
        self.ping_stream.on_recv(self._on_subscription)

    def _on_subscription(self, frames):
        if not self._is_asking_soon:
            self._is_asking_soon = True
            self.loop.call_later(clocks.HEARTBEAT_TOGETHER_S, self._ask)

    def _ask(self):
        # Repeat the current heartbeat. A new one would make answers to the current one late.
        self._is_asking_soon = False
        self._say(str(self.lifetime).encode())

    def _say(self, what):
        self.ping_stream.send(what)
        self.ping_stream.flush()

    def handle_heart_failure(self, hearts: Collection[bytes]) -> None:
        """
        Report hearts that have failed for too long to the hub, and note them as given up.
        """
        super().handle_heart_failure(hearts)
        self._given_up |= set(hearts)

    def handle_pong(self, msg: Sequence[bytes]) -> None:
        """
        Count an answer, however late, and report a new heart to the hub at once.

        A heart that was given up gets a message that says so, because its rank was replaced.

        ipyparallel accepts only answers to the last two heartbeats. On a crowded machine each
        answer may be seconds late, and a rank of which no answer counts is never registered.
        """
        if msg[0] in self._given_up:
            if not msg[1].startswith(
                ENGINE_GIVEN_UP
            ):  # the heart echoes our message: do not answer that
                self._say(ENGINE_GIVEN_UP + msg[0])
            return
        self.responses.add(msg[0])
        new_hearts = self.responses - self.hearts
        if new_hearts:
            self.handle_new_hearts(new_hearts)


def run_heart_monitor(
    ping_url: str,
    pong_url: str,
    monitor_url: str,
    log_level: int = logging.INFO,
    curve_publickey: bytes | None = None,
    curve_secretkey: bytes | None = None,
    **settings: Any,
) -> None:
    """
    Run a PromptHeartMonitor in this process, for ever, in place of ipyparallel's own function.

    Args:
        ping_url, pong_url, monitor_url: Addresses to send heartbeats, receive answers and publish
            to the hub (see `start_heartmonitor` of ipyparallel).
        log_level: Level of the log.
        curve_publickey, curve_secretkey: Keys for encryption, as bytes, or None.
        settings: Other arguments of HeartMonitor.
    """

    async def beat():
        context = zmq.Context()
        keys = {"curve_publickey": curve_publickey, "curve_secretkey": curve_secretkey}
        ping = context.socket(zmq.XPUB)
        ping.setsockopt(zmq.XPUB_VERBOSE, 1)  # else ZeroMQ reports only the first subscription
        bind(ping, ping_url, **keys)
        pong = context.socket(zmq.ROUTER)
        set_hwm(pong, 0)
        bind(pong, pong_url, **keys)
        monitor = context.socket(zmq.XPUB)
        connect(monitor, monitor_url, curve_serverkey=curve_publickey, **keys)
        settings["log"] = IPController(log_level=log_level).log  # a new log for a forked process
        streams = {
            name: ZMQStream(sock)
            for name, sock in (("ping", ping), ("pong", pong), ("monitor", monitor))
        }
        PromptHeartMonitor(**{f"{n}_stream": s for n, s in streams.items()}, **settings).start()
        await asyncio.get_running_loop().create_future()

    asyncio.run(beat())
