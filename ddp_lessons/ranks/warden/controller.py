"""
What ipyparallel's controller is told when it starts for a set of ranks.
"""

import os
import secrets
import socket

NUM_PORTS = 20
"""
Ports to hold for a controller: it binds fifteen.
"""
LOOPBACK = "127.0.0.1"
EVERY_INTERFACE = "*"
_MISSES_HERE, _MISSES_ELSEWHERE = 1200, 15
"""
Beats of half a second without an answer after which an engine counts as dead.
"""


def controller_arguments(profile_dir, cluster_id, listen=LOOPBACK):
    """
    Return the command line of the controller of one set of ranks.

    Args:
        profile_dir: IPython profile folder that gets the connection files.
        cluster_id: Name of this set of ranks, unlike any other.
        listen: Address to listen on: LOOPBACK, the one that leads to ranks on other machines, or
            EVERY_INTERFACE.
    """
    misses = _MISSES_HERE if listen == LOOPBACK else _MISSES_ELSEWHERE
    return [
        f"--ip={listen}",
        f"--profile-dir={os.fspath(profile_dir)}",
        f"--cluster-id={cluster_id}",
        "--log-level=ERROR",
        # A rank without a warden learns by this that its controller is gone: see `RankEngine`.
        "--HeartMonitor.period=500",
        # A death is told at once, by the warden or a nanny. A heart that is late is only busy; but
        # a host that has vanished tells nothing.
        f"--HeartMonitor.max_heartmonitor_misses={misses}",
        # One process with threads in place of eight starts sooner and holds less memory.
        "--IPController.use_threads=True",
        # The kernel gives up a start that does not move; the controller itself never does.
        "--IPController.registration_timeout=3600",
        "--IPController.broadcast_scheduler_depth=0",
        # Every user of this machine can connect to the ports. Without it they read all that is
        # sent, and what they send may stop a queue for good.
        "--IPController.enable_curve=True",
        # ipyparallel signs nothing that it encrypts, and then warns that this is not safe.
        f"--Session.key={secrets.token_hex()}",
    ]


def hold_ports(num_ports=NUM_PORTS):
    """
    Take free ports that this process alone can listen on as long as the sockets are open.

    ipyparallel finds free ports, lets go of them and listens on them later: of controllers that
    start at the same moment two get the same port. Nobody is given a port that is bound, while
    ZeroMQ, which shares addresses, may listen on it.

    Returns:
        list[socket.socket]: Bound sockets, which listen to nobody.
    """
    held = []
    for _ in range(num_ports):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", 0))
        held.append(sock)
    return held


def ports_argument(held):
    """
    Return the controller's command line argument for the ports that are held for it.
    """
    return "--ports=" + ",".join(str(sock.getsockname()[1]) for sock in held)
