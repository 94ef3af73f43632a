"""
The line between kernel, supervisor and ranks: JSON messages, one a line, over a Unix socket.

The sockets are made in pairs before the process at the other end exists, so they have no
name in the file system and no port: nobody else can connect to them.
"""

import json
import socket
import threading

_MAX_READ_BYTES = 1 << 16


class JsonPipe:
    """
    Send and receive dictionaries over one end of a socket pair. Sending is thread-safe.

    Args:
        sock: A connected stream socket. The link owns it from now on.
    """

    def __init__(self, sock):
        self.sock = sock
        self._lock = threading.Lock()
        self._unread = b""

    def fileno(self):
        """
        Return the socket's file descriptor, so that a link can be waited for.
        """
        return self.sock.fileno()

    def send(self, **message):
        """
        Send one message. A reader that is gone is not an error: it no longer needs the message.

        Returns:
            True if it was sent, False if the other end is closed.
        """
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            try:
                self.sock.sendall(data)
            except (BrokenPipeError, ConnectionResetError, OSError):
                return False
        return True

    def receive(self):
        """
        Read what is there and return it; blocks until there is something.

        Returns:
            list[dict]: Whole messages, possibly none yet; None once the other end is closed.
        """
        try:
            data = self.sock.recv(_MAX_READ_BYTES)
        except (ConnectionResetError, OSError):
            return None
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self):
        """
        Close the socket. Whoever reads at the other end gets None.
        """
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end closed first
        self.sock.close()


def json_pipe_pair():
    """
    Return two connected links.
    """
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return JsonPipe(left), JsonPipe(right)
