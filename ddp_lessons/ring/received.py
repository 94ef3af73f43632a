"""
The system's count of the bytes that came over TCP, whichever code asked for them.

Lesson: 03_ring.
"""

import os
import socket
import stat
import struct
import sys

from ddp_lessons.errors import BadInput

# An option of a TCP connection, and where in its answer the bytes received are.
_WHERE = {
    "linux": (11, 128),  # TCP_INFO, tcpi_bytes_received: include/uapi/linux/tcp.h
    "darwin": (0x106, 88),  # TCP_CONNECTION_INFO, tcpi_rxbytes: xnu, bsd/netinet/tcp.h; not run
}


def tcp_bytes_received(system: str = sys.platform) -> int:
    """
    Return how many bytes all TCP connections of this process have received so far.

    Gloo's messages between ranks come over TCP, on one machine too.

    Args:
        system: The system's name, as in `sys.platform`.

    Raises:
        BadInput: The system does not tell.
    """
    if system not in _WHERE:
        raise BadInput(
            f"Nobody counts: expected a system that counts a connection's bytes (got {system!r}). "
            f"Run it on one of {', '.join(_WHERE)}."
        )
    return sum(_bytes_of(number, *_WHERE[system]) for number in _open_sockets())


def _open_sockets():
    numbers = []
    for name in os.listdir("/dev/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                numbers.append(int(name))
        except OSError:  # the folder itself was open while it was read
            continue
    return numbers


def _bytes_of(number, option, offset):
    with socket.socket(fileno=os.dup(number)) as link:
        if link.family not in (socket.AF_INET, socket.AF_INET6):
            return 0
        if link.type != socket.SOCK_STREAM:
            return 0
        facts = link.getsockopt(socket.IPPROTO_TCP, option, offset + 8)
    return struct.unpack_from("Q", facts, offset)[0]
