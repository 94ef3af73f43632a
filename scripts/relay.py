"""
A switch whose cables are long: each frame comes out `--delay-ms` after it went in.

    python relay.py --delay-ms 5 port0 port1 port2

scripts/hosts.sh starts this program if links need a delay, because not every kernel has tc's netem.
The program needs root, and devices that are up. It prints `ready`, and runs until it is ended.
"""

import argparse
import errno
import selectors
import socket
import sys
import time
from collections import deque

ETH_P_ALL = 0x0003  # every kind of frame; linux/if_ether.h
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
VNET_HDR_BYTES = 10
"""
Size of the header of each frame, which says that the kernel has postponed the frame's checksum and
its segmentation into packets. A frame that is sent on with its header may have 64 KiB, and the
receiver does not miss the checksum.
"""
MOST_BYTES = VNET_HDR_BYTES + 65_536 + 64
MOST_AT_ONCE = 64
BROADCAST_BIT = 1


def open_port(name):
    """
    Return a socket for all frames that come in at a device.
    """
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    port.bind((name, ETH_P_ALL))
    port.setblocking(False)
    return port


class Switch:
    """
    The frames on their way between ports, oldest first.

    Args:
        ports: The sockets.
        delay_s: Seconds between a frame's arrival and its delivery.
    """

    def __init__(self, ports, delay_s):
        self.ports = ports
        self.delay_s = delay_s
        self.port_of = {}  # address of a device -> its port, learned from what it sends
        self.under_way = deque()  # (when it comes out, from where, frame)

    def take(self, port):
        """
        Queue the frames that have come in at a port.
        """
        for _ in range(MOST_AT_ONCE):
            try:
                frame = port.recv(MOST_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENETDOWN:  # the link is down
                    return
                raise
            self.under_way.append((time.monotonic() + self.delay_s, port, frame))

    def deliver(self):
        """
        Send on the frames whose delay is over.

        Returns:
            float | None: Seconds until the next frame comes out; None if no frame is queued.
        """
        while self.under_way:
            left_s = self.under_way[0][0] - time.monotonic()
            if left_s > 0:
                return left_s
            _, source, frame = self.under_way.popleft()
            self._send(source, frame)
        return None

    def _send(self, source, frame):
        target = frame[VNET_HDR_BYTES : VNET_HDR_BYTES + 6]
        self.port_of[frame[VNET_HDR_BYTES + 6 : VNET_HDR_BYTES + 12]] = source
        known = None if target[0] & BROADCAST_BIT else self.port_of.get(target)
        for port in self.ports if known is None else [known]:
            if port is not source:
                _send_or_drop(port, frame)


def _send_or_drop(port, frame):
    """
    Send a frame. If a queue is full, or the link is down, the frame is lost, as on a real wire.
    """
    try:
        port.send(frame)
    except OSError as error:
        if error.errno not in (errno.ENOBUFS, errno.EAGAIN, errno.ENETDOWN):
            raise


def main(argv):
    """
    Pass frames on until this process is ended.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--delay-ms", type=float, required=True, metavar="MS")
    parser.add_argument("ports", nargs="+", metavar="DEVICE")
    arguments = parser.parse_args(argv)
    ports = [open_port(name) for name in arguments.ports]
    switch = Switch(ports, arguments.delay_ms / 1000)
    with selectors.DefaultSelector() as selector:
        for port in ports:
            selector.register(port, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            # epoll counts in whole milliseconds, and rounds up: a frame is at most 1 ms late.
            for key, _ in selector.select(switch.deliver()):
                switch.take(key.fileobj)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
