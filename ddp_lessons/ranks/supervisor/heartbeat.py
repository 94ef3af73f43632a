"""
The controller's heart monitor, which counts a rank as there as soon as its heart listens.

ipyparallel's own asks all hearts once a period and counts the answers at the next one, so that a
rank that is ready is kept waiting for one or two periods. Here the publisher hears who subscribes,
asks at once, and passes the first answer on.

A heart that has failed for so long that it was given up stays so: it is told when it beats again.
"""

import asyncio
import logging

import zmq
from ipyparallel.controller.app import IPController
from ipyparallel.controller.heartmonitor import HeartMonitor
from ipyparallel.util import bind, connect, set_hwm
from zmq.eventloop.zmqstream import ZMQStream

from ddp_lessons.ranks.rank.orphan_watchdog import GIVEN_UP
from ddp_lessons.ranks.system import clocks


class PromptHeartMonitor(HeartMonitor):
    """
    A HeartMonitor that asks when a heart subscribes, too. Its `ping_stream` is a verbose XPUB.
    """

    _is_asking_soon = False
    _given_up: frozenset = frozenset()

    def start(self):
        """
        Begin to beat, and to hear of subscriptions.
        """
        super().start()
        self.ping_stream.on_recv(self._on_subscription)

    def _on_subscription(self, frames):
        if not self._is_asking_soon:
            self._is_asking_soon = True
            self.loop.call_later(clocks.HEARTBEAT_TOGETHER_S, self._ask)

    def _ask(self):
        # The last beat once more: a beat of its own would make those late that answer that one.
        self._is_asking_soon = False
        self._say(str(self.lifetime).encode())

    def _say(self, what):
        self.ping_stream.send(what)
        self.ping_stream.flush()

    def handle_heart_failure(self, hearts):
        """
        Tell the hub of hearts that have failed for too long, and keep in mind which.
        """
        super().handle_heart_failure(hearts)
        self._given_up |= set(hearts)

    def handle_pong(self, msg):
        """
        Count an answer, however late, and tell the hub at once of a heart that was not known. One
        that was given up hears so: another rank has its place.

        ipyparallel takes the answers to the last two beats only. On a crowded machine each may be
        seconds late, and a rank whose first one never counts is never registered.
        """
        if msg[0] in self._given_up:
            if not msg[1].startswith(GIVEN_UP):  # or what it sends back would be answered for ever
                self._say(GIVEN_UP + msg[0])
            return
        self.responses.add(msg[0])
        new_hearts = self.responses - self.hearts
        if new_hearts:
            self.handle_new_hearts(new_hearts)


def run_heart_monitor(
    ping_url,
    pong_url,
    monitor_url,
    log_level=logging.INFO,
    curve_publickey=None,
    curve_secretkey=None,
    **settings,
):
    """
    Run a PromptHeartMonitor in this process, for ever.

    Args:
        ping_url: As the arguments that follow, see `start_heartmonitor` of ipyparallel, whose place
            this takes.
    """

    async def beat():
        context = zmq.Context()
        keys = {"curve_publickey": curve_publickey, "curve_secretkey": curve_secretkey}
        ping = context.socket(zmq.XPUB)
        ping.setsockopt(zmq.XPUB_VERBOSE, 1)  # or only the first to subscribe would be heard
        bind(ping, ping_url, **keys)
        pong = context.socket(zmq.ROUTER)
        set_hwm(pong, 0)
        bind(pong, pong_url, **keys)
        monitor = context.socket(zmq.XPUB)
        connect(monitor, monitor_url, curve_serverkey=curve_publickey, **keys)
        settings["log"] = IPController(log_level=log_level).log  # anew in a forked process
        streams = {
            name: ZMQStream(sock)
            for name, sock in (("ping", ping), ("pong", pong), ("monitor", monitor))
        }
        PromptHeartMonitor(**{f"{n}_stream": s for n, s in streams.items()}, **settings).start()
        await asyncio.get_running_loop().create_future()

    asyncio.run(beat())
