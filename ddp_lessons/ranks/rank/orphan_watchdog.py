"""
End this rank when its controller is gone, also while it runs a cell: for ranks without a supervisor.

ipyparallel's engine looks after its controller in the thread that runs cells. One that waits for a
peer would outlive a kernel that was killed, for as long as it waits. And one whose host was cut off
for so long that another has its place would be there beside it when the host is back.
"""

import os
import threading

import zmq
from ipyparallel.controller.heartmonitor import Heart

GIVEN_UP = b"given up "
"""
What the controller says, with the identity of an engine that it had given up, and hears again.
"""


def start_orphan_watchdog(engine, ping_url, pong_url, identity, limit_s):
    """
    Answer the controller's heartbeats, and end this process once they have failed to come, or the
    controller says that it has given this one up.

    Args:
        engine: The RankEngine, for its context and its keys.
        ping_url, pong_url: Where the controller asks and is answered.
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
    # Asked once more at the end: a process that was held up itself has heartbeats to read then.
    while monitor.poll(limit_s * 1000) or monitor.poll(0):
        if monitor.recv_multipart()[-1] == GIVEN_UP + identity:
            break
    nanny = getattr(engine, "nanny_pipe", None)
    if nanny is not None:
        # It would tell the controller, perhaps later, that the engine of this number has ended. By
        # then that may be another one.
        nanny.kill()
    os._exit(1)
