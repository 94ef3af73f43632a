"""
See that a detached process starts and ends, by the named pipe that it holds open.
"""

import os
import select

from waiting import HANGS_AFTER_S


class Witness:
    """
    Read a named pipe that a detached process holds open.
    """

    def __init__(self, path):
        os.mkfifo(path)
        self.pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.detach = f"(setsid sh -c 'exec 9>{path}; echo here >&9; exec sleep 600' &)"

    def has_started(self):
        """
        Tell whether the process has said that it is there.
        """
        return bool(select.select([self.pipe], [], [], 0)[0]) and self._read() == b"here\n"

    def wait_for_start(self):
        """
        Return when the process is there.
        """
        assert self._read() == b"here\n"

    def wait_for_end(self):
        """
        Return when the process is gone.
        """
        assert self._read() == b""

    def _read(self):
        ready, _, _ = select.select([self.pipe], [], [], HANGS_AFTER_S)
        assert ready, "nothing happened"
        return os.read(self.pipe, 100)
