"""
The command line of ipyparallel's controller for a set of ranks.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddp_lessons.ranks.system import clocks

NUM_PORTS = 20
"""
Number of ports to hold for a controller. It binds fifteen.
"""
LOOPBACK = "127.0.0.1"
EVERY_INTERFACE = "*"
_SOCKET = "socket"


def can_hold_sockets(folder: str | os.PathLike[str]) -> bool:
    """
    Return whether a controller can listen on sockets in a folder.

    A socket's path has at most 107 bytes, and some network file systems do not support sockets.

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


def controller_arguments(
    profile_dir: str | os.PathLike[str],
    cluster_id: str,
    listen: str = LOOPBACK,
    folder: str | os.PathLike[str] | None = None,
) -> list[str]:
    """
    Return the command line of the controller of one set of ranks.

    Args:
        profile_dir: IPython profile folder that gets the connection files.
        cluster_id: Unique name of this set of ranks.
        listen: Address to listen on: LOOPBACK, the address that leads to ranks on other machines,
            or EVERY_INTERFACE.
        folder: In place of an address, a private folder that can hold sockets, for ranks that are
            all children of this machine's supervisor. No other user can reach these sockets, so
            nothing is encrypted. Encryption would happen twice for each message.
    """
    misses = clocks.HERE_MISSES if listen == LOOPBACK else clocks.ELSEWHERE_MISSES
    return [
        *(_on_network(listen) if folder is None else _in_folder(folder)),
        f"--profile-dir={os.fspath(profile_dir)}",
        f"--cluster-id={cluster_id}",
        "--log-level=ERROR",
        # By missing heartbeats a rank without a supervisor learns that its controller is gone.
        f"--HeartMonitor.period={clocks.HEARTBEAT_EVERY_MS}",
        # The supervisor or ipyparallel's `KernelNanny` reports a death at once, so a late answer
        # only means a busy rank. A host that has vanished reports nothing, so its ranks must be
        # given up here.
        f"--HeartMonitor.max_heartmonitor_misses={misses}",
        # One process with threads in place of eight starts sooner and holds less memory.
        "--IPController.use_threads=True",
        # The kernel gives up a start that makes no progress. The controller never does by itself.
        f"--IPController.registration_timeout={clocks.NEVER_S}",
        "--IPController.broadcast_scheduler_depth=0",
        # Without a key, ipyparallel does not sign encrypted messages, and warns that it is unsafe.
        f"--Session.key={secrets.token_hex()}",
    ]


def _on_network(listen):
    # Every user of this machine can connect to the ports. Without encryption such users could read
    # all messages, and could stop a queue for good. `hold_ports` chooses the ports later.
    return [f"--ip={listen}", "--IPController.enable_curve=True"]


def _in_folder(folder):
    # With this transport, ports are numbers in the names of the sockets' files.
    names = ",".join(str(number) for number in range(1, NUM_PORTS + 1))
    return ["--IPController.transport=ipc", f"--ip={Path(folder) / _SOCKET}", f"--ports={names}"]


def hold_ports(num_ports: int = NUM_PORTS) -> list[socket.socket]:
    """
    Bind free ports on which only this process can listen while the sockets are open.

    ipyparallel finds free ports, closes them and listens on them later, so two controllers that
    start at the same moment may get the same port. The system gives a bound port to no other
    process. ZeroMQ in this process can still listen on it, because it shares addresses.

    Returns:
        list[socket.socket]: Bound sockets, which do not listen.
    """
    held = []
    for _ in range(num_ports):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", 0))
        held.append(sock)
    return held


def needs_ports(argv: Iterable[str]) -> bool:
    """
    Return whether a controller's command line lacks the ports on which it is to listen.
    """
    return not any(argument.startswith("--ports=") for argument in argv)


def ports_argument(held: Sequence[socket.socket]) -> str:
    """
    Return the controller's command line argument that names the held ports.

    Args:
        held: The sockets that `hold_ports` has bound.
    """
    return "--ports=" + ",".join(str(sock.getsockname()[1]) for sock in held)
