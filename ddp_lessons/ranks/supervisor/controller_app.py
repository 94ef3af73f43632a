"""
ipyparallel's controller for one set of ranks: it keeps no record of cells.

The hub of a stock controller gets a copy of every message between the kernel and the ranks, and
keeps a database of requests and results, so that a client that comes later can ask for them. Nobody
does here, and reading five messages a rank takes more of a core than running a short cell.
"""

import zmq
from ipyparallel.controller.app import IPController

_CELLS = (b"in", b"out", b"inbcast", b"outbcast", b"iopub")


class RanksController(IPController):
    """
    An IPController whose hub hears of hearts and of load-balanced tasks, and of no cells. It may
    listen on sockets in a folder, too.
    """

    name = "ipcontroller"  # which is in the names of its connection files

    def init_hub(self):
        """
        Make the hub, and take the cells' messages out of what it listens to.
        """
        super().init_hub()
        sock = self.hub.monitor.socket
        sock.setsockopt(zmq.UNSUBSCRIBE, b"")
        for topic in self.hub.monitor_handlers.keys() - set(_CELLS):
            sock.setsockopt(zmq.SUBSCRIBE, topic)
        forget = self.hub.handle_stopped_heart
        self.hub.handle_stopped_heart = lambda heart: (self._tell_of_silence(heart), forget(heart))

    def _tell_of_silence(self, heart):
        # The hub's own word is the same for a process that has ended and a host that is silent.
        rank = self.hub.hearts.get(heart)
        if rank is not None and self.hub.notifier:
            content = {"id": rank, "uuid": self.hub.engines[rank].uuid, "is_silent": True}
            self.hub.session.send(self.hub.notifier, "unregistration_notification", content=content)

    def construct_url(self, kind, channel, index=None):
        """
        Return the address of a channel as engines and clients write it, also if it is a file's.

        ipyparallel's controller writes a hyphen before such a file's number, the others a colon.
        """
        info = getattr(self, f"{kind}_info")
        port = info[channel] if index is None else info[channel][index]
        return f"{info['interface']}:{port}"
