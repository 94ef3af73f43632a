"""
ipyparallel's controller for one set of ranks, without a record of cells.

A stock controller has a part, which ipyparallel calls its hub, that gets a copy of every message
between the kernel and the ranks. The hub stores requests and results, so that a later client can
ask for them. No client does so here, and reading five messages for each rank takes more CPU time
than running a short cell.
"""

import zmq
from ipyparallel.controller.app import IPController

_CELLS = (b"in", b"out", b"inbcast", b"outbcast", b"iopub")


class RanksController(IPController):
    """
    An IPController whose hub gets heartbeat and load-balancing messages, but none of cells.

    It may also listen on sockets in a folder.
    """

    name = "ipcontroller"  # a part of the names of its connection files

    def init_hub(self) -> None:
        """
        Make the hub, and unsubscribe it from the messages of cells.
        """
        super().init_hub()
        sock = self.hub.monitor.socket
        sock.setsockopt(zmq.UNSUBSCRIBE, b"")
        for topic in self.hub.monitor_handlers.keys() - set(_CELLS):
            sock.setsockopt(zmq.SUBSCRIBE, topic)
        forget = self.hub.handle_stopped_heart
        self.hub.handle_stopped_heart = lambda heart: (self._tell_of_silence(heart), forget(heart))

    def _tell_of_silence(self, heart):
        # The hub's own notification is the same for an ended process and for a silent host. So we
        # send one for a silent heart first.
        rank = self.hub.hearts.get(heart)
        if rank is not None and self.hub.notifier:
            content = {"id": rank, "uuid": self.hub.engines[rank].uuid, "is_silent": True}
            self.hub.session.send(self.hub.notifier, "unregistration_notification", content=content)

    def construct_url(self, kind: str, channel: str, index: int | None = None) -> str:
        """
        Return the address of a channel as engines and clients write it, also for a socket's file.

        ipyparallel's controller writes a hyphen before the number of a socket's file, while its
        engines and clients write a colon.
        """
        info = getattr(self, f"{kind}_info")
        port = info[channel] if index is None else info[channel][index]
        return f"{info['interface']}:{port}"
