"""
Load and kills for `random_faults`, and a measure of how long processes waited for a core.
"""

import contextlib
import os
import subprocess
import sys
import threading


class RunQueues:
    """
    A measure of how long processes were ready to run while no core was free.

    Source: Linux's Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
    """

    def __init__(self, pids):
        self._before = self._read(pids)

    def seconds(self, pids):
        """
        Return the seconds for which the processes waited for a core since the beginning.

        The waits of all processes are added, because one process hands its result to the next.
        """
        now = self._read(pids)
        return sum(max(0, ns - self._before.get(thread, 0)) for thread, ns in now.items()) / 1e9

    @staticmethod
    def _read(pids):
        waited_ns = {}
        for pid in pids:
            with contextlib.suppress(OSError):  # the process has ended
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{thread}/schedstat") as f:
                        waited_ns[int(thread)] = int(f.read().split()[1])
        return waited_ns


@contextlib.contextmanager
def busy_cores():
    """
    Keep every core busy with a process that only computes.
    """
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@contextlib.contextmanager
def killing(pids, after_s):
    """
    Kill processes `after_s` seconds after the block has begun.
    """

    def kill():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    timer = threading.Timer(after_s, kill)
    if pids:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if pids:
            timer.join()
