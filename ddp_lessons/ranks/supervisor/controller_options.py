"""
What ipyparallel's controller is told when it starts for a set of ranks.
"""

import os
import secrets
import socket
from pathlib import Path

from ddp_lessons.ranks.system import clocks

NUM_PORTS = 20
"""
Ports to hold for a controller: it binds fifteen.
"""
LOOPBACK = "127.0.0.1"
EVERY_INTERFACE = "*"
_SOCKET = "socket"


def can_hold_sockets(folder):
    """
    Tell whether a controller can listen on sockets in a folder.

    A socket's path has 107 bytes at most, and some network file systems know no sockets.

    Source: unix(7), sun_path.
    """
    probe = Path(folder) / f"{_SOCKET}:{NUM_PORTS}"
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(os.fspath(probe))
    except (OSError, AttributeError):  # AttributeError: a Python without such sockets
        return False
    probe.unlink()
    return True


def controller_arguments(profile_dir, cluster_id, listen=LOOPBACK, folder=None):
    """
    Return the command line of the controller of one set of ranks.

    Args:
        profile_dir: IPython profile folder that gets the connection files.
        cluster_id: Name of this set of ranks, unlike any other.
        listen: Address to listen on: LOOPBACK, the one that leads to ranks on other machines, or
            EVERY_INTERFACE.
        folder: In place of an address, a private folder that can hold sockets, for ranks that are
            all children of this machine's supervisor. No other user comes as far as these sockets, so
            nothing is encrypted, which each message would be twice on its way.
    """
    misses = clocks.HERE_MISSES if listen == LOOPBACK else clocks.ELSEWHERE_MISSES
    return [
        *(_on_network(listen) if folder is None else _in_folder(folder)),
        f"--profile-dir={os.fspath(profile_dir)}",
        f"--cluster-id={cluster_id}",
        "--log-level=ERROR",
        # A rank without a supervisor learns by this that its controller is gone: see `RankEngine`.
        f"--HeartMonitor.period={clocks.HEARTBEAT_EVERY_MS}",
        # A death is told at once, by the supervisor or a nanny. A heart that is late is only busy; but
        # a host that has vanished tells nothing.
        f"--HeartMonitor.max_heartmonitor_misses={misses}",
        # One process with threads in place of eight starts sooner and holds less memory.
        "--IPController.use_threads=True",
        # The kernel gives up a start that does not move; the controller itself never does.
        f"--IPController.registration_timeout={clocks.NEVER_S}",
        "--IPController.broadcast_scheduler_depth=0",
        # ipyparallel signs nothing that it encrypts, and then warns that this is not safe.
        f"--Session.key={secrets.token_hex()}",
    ]


def _on_network(listen):
    # Every user of this machine can connect to the ports. Without encryption they read all that is
    # sent, and what they send may stop a queue for good. The ports come later: see `hold_ports`.
    return [f"--ip={listen}", "--IPController.enable_curve=True"]


def _in_folder(folder):
    # What are ports elsewhere are numbers in the sockets' names.
    names = ",".join(str(number) for number in range(1, NUM_PORTS + 1))
    return ["--IPController.transport=ipc", f"--ip={Path(folder) / _SOCKET}", f"--ports={names}"]


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


def needs_ports(argv):
    """
    Tell whether a controller with such a command line listens on ports that were not named yet.
    """
    return not any(argument.startswith("--ports=") for argument in argv)


def ports_argument(held):
    """
    Return the controller's command line argument for the ports that are held for it.
    """
    return "--ports=" + ",".join(str(sock.getsockname()[1]) for sock in held)
