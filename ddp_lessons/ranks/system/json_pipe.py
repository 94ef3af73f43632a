"""
The JSON pipe between kernel and supervisor: JSON messages, one a line, over a Unix socket.

The sockets are made in pairs before the process at the other end exists, so they have no name in
the file system and no port. No other process can connect to them.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

_MAX_READ_BYTES = 1 << 16


class JsonPipe:
    """
    One end of a socket pair, which sends and receives dictionaries. Sending is thread-safe.

    Args:
        sock: A connected stream socket, which `close` closes.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._unread = b""

    def fileno(self) -> int:
        """
        Return the socket's file descriptor, so that a selector can wait for the pipe.
        """
        return self.sock.fileno()

    def send(self, **message: object) -> bool:
        """
        Send one message. A closed other end is not an error: its process needs no message any more.

        Returns:
            bool: True if the message was sent, False if the other end is closed.
        """
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            try:
                self.sock.sendall(data)
            except (BrokenPipeError, ConnectionResetError, OSError):
                return False
        return True

    def receive(self) -> list[dict[str, Any]] | None:
        """
        Read the data that have arrived, and return the messages. Block until there are data.

        Returns:
            list[dict] or None: Whole messages, possibly none yet; None once the other end is
            closed.
        """
        try:
            data = self.sock.recv(_MAX_READ_BYTES)
        except (ConnectionResetError, OSError):
            return None
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """
        Close the socket. `receive` at the other end returns None then.
        """
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end closed first
        self.sock.close()


def json_pipe_pair() -> tuple[JsonPipe, JsonPipe]:
    """
    Return two connected JsonPipes.
    """
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return JsonPipe(left), JsonPipe(right)
