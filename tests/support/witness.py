"""
A witness of a detached process: it sees by a named pipe that the process starts and ends.
"""

import os
import select

from waiting import HANGS_AFTER_S


class Witness:
    """
    The reading end of a named pipe that a detached process holds open.
    """

    def __init__(self, path):
        os.mkfifo(path)
        self.pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.detach = f"(setsid sh -c 'exec 9>{path}; echo here >&9; exec sleep 600' &)"

    def has_started(self):
        """
        Return whether the process has written its first line.
        """
        return bool(select.select([self.pipe], [], [], 0)[0]) and self._read() == b"here\n"

    def wait_for_start(self):
        """
        Wait until the process has started.
        """
        assert self._read() == b"here\n"

    def wait_for_end(self):
        """
        Wait until the process has ended.
        """
        assert self._read() == b""

    def _read(self):
        ready, _, _ = select.select([self.pipe], [], [], HANGS_AFTER_S)
        assert ready, "nothing happened"
        return os.read(self.pipe, 100)
