"""
A Jupyter server extension: a kernel that is busy counts as activity, for DDP_LESSONS_BUSY_HOURS.

A hub stops the servers that have reported no activity for some hours. Jupyter counts the messages
of kernels, and a cell that trains for hours without output sends none. Without the variable, as on
a learner's own machine, the extension does nothing.
"""

import time
from datetime import UTC, datetime

from tornado.ioloop import PeriodicCallback

from ddp_lessons.ranks.system.resource_limits import setting

LOOK_EVERY_S = 60


class BusyKernels:
    """
    Since when each of a server's kernels has been busy.

    A kernel that is busy at two looks in a row counts as busy in between.

    Args:
        kernel_manager: The server's kernel manager.
        max_busy_s: Seconds after which a busy kernel does not count as activity any more.
    """

    def __init__(self, kernel_manager, max_busy_s):
        self._kernel_manager, self._max_busy_s = kernel_manager, max_busy_s
        self._busy_since = {}

    def has_activity(self, now_s):
        """
        Look at all kernels, and return whether one has been busy for less than `max_busy_s`.

        Args:
            now_s: The time by a clock that only goes forward.
        """
        manager = self._kernel_manager
        self._busy_since = {
            name: self._busy_since.get(name, now_s)
            for name in manager.list_kernel_ids()
            if manager.get_kernel(name).execution_state == "busy"
        }
        return any(now_s - since < self._max_busy_s for since in self._busy_since.values())


def _jupyter_server_extension_points():
    return [{"module": __name__}]


def _load_jupyter_server_extension(server):
    hours = setting("DDP_LESSONS_BUSY_HOURS")
    if hours is None:
        return
    kernels = BusyKernels(server.kernel_manager, hours * 3600)

    def look():
        if kernels.has_activity(time.monotonic()):
            # Jupyter's place for the activity of extensions; it takes the newest time of all.
            server.web_app.settings["last_activity_times"]["ddp_lessons"] = datetime.now(UTC)

    PeriodicCallback(look, 1000 * LOOK_EVERY_S).start()
