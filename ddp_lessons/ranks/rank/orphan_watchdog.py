"""
The orphan watchdog: it ends a rank without a supervisor when its controller is gone.

ipyparallel's engine checks for its controller in the thread that runs cells. So a rank that waits
for a peer would outlive a kernel that was killed, for as long as it waits. The watchdog works while
a cell runs, too. It also ends a rank that the controller has given up: if a host was cut off for
so long that the rank was replaced, two processes would have one rank once the host is back.
"""

import os
import threading
from typing import TYPE_CHECKING

import zmq
from ipyparallel.controller.heartmonitor import Heart

from ddp_lessons.ranks.messages.rank_start import ENGINE_GIVEN_UP

if TYPE_CHECKING:
    from ipyparallel.engine.app import IPEngine


def start_orphan_watchdog(
    engine: "IPEngine", ping_url: str, pong_url: str, identity: bytes, limit_s: float
) -> None:
    """
    Answer the controller's heartbeats, and end this process once the controller is gone.

    The process ends, too, when the controller reports that it has given up this rank.

    Args:
        engine: The RankEngine, whose ZeroMQ context and keys are used.
        ping_url, pong_url: Addresses to which the controller sends heartbeats and expects answers.
        identity: The engine's identity, as bytes.
        limit_s: Seconds without a heartbeat after which the controller counts as gone.
    """
    monitor = engine.context.socket(zmq.SUB)
    if engine.curve_serverkey:
        monitor.setsockopt(zmq.CURVE_SERVER, 1)
        monitor.setsockopt(zmq.CURVE_SECRETKEY, engine.curve_secretkey)
    port = monitor.bind_to_random_port("tcp://127.0.0.1")
    monitor.setsockopt(zmq.SUBSCRIBE, b"")
    heart = Heart(
        ping_url,
        pong_url,
        f"tcp://127.0.0.1:{port}",
        heart_id=identity,
        curve_serverkey=engine.curve_serverkey,
        curve_secretkey=engine.curve_secretkey,
        curve_publickey=engine.curve_publickey,
    )
    heart.start()
    watcher = threading.Thread(
        target=_watch, args=(monitor, limit_s, identity, engine), daemon=True
    )
    watcher.name = "ddp-lessons-lifeline"
    watcher.start()


def _watch(monitor, limit_s, identity, engine):
    # Poll once more after the limit: if this process was suspended, unread heartbeats wait by then.
    while monitor.poll(limit_s * 1000) or monitor.poll(0):
        if monitor.recv_multipart()[-1] == ENGINE_GIVEN_UP + identity:
            break
    nanny = getattr(engine, "nanny_pipe", None)
    if nanny is not None:
        # ipyparallel's `KernelNanny` would report the end of this engine to the controller, perhaps
        # late. By then a replacement may have this engine's number.
        nanny.kill()
    os._exit(1)
