"""
One rank: an ipyparallel engine whose id is its rank, and which has a rank agent.

ipyparallel's own launchers (Slurm, SSH, MPI, local) start it by this command:

    python -m ddp_lessons.ranks.rank.rank_engine ...      takes the arguments of ipengine
"""

import functools
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from ipyparallel.engine import app
from traitlets import Float, Integer, default

from ddp_lessons.private.ipyparallel_cluster import stop_engine
from ddp_lessons.ranks.messages.agent_requests import (
    HOST_INFO_REQUEST,
    RELEASE_REQUEST,
    SNAPSHOT_REQUEST,
    STATE_REQUEST,
    WAKE_REQUEST,
    reply_type,
)
from ddp_lessons.ranks.messages.rank_start import RANK_FROM
from ddp_lessons.ranks.rank.host_info import host_info
from ddp_lessons.ranks.rank.orphan_watchdog import start_orphan_watchdog
from ddp_lessons.ranks.rank.output_limit import Descriptors, OutputLimit, RankStream
from ddp_lessons.ranks.rank.rank_agent import RankAgent
from ddp_lessons.ranks.rank.rank_kernel import RankKernel
from ddp_lessons.ranks.system import clocks
from ddp_lessons.ranks.system.network_interfaces import bind_groups_towards
from ddp_lessons.ranks.system.processes import END_SIGNAL

if TYPE_CHECKING:
    from subprocess import Popen

    from ipykernel.iostream import IOPubThread

_RANK_VARIABLES = "RANK OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK SLURM_PROCID"


app.Kernel = RankKernel  # the class that an engine looks up by this name to make its kernel


class RankEngine(app.IPEngine):
    """
    An ipyparallel engine that asks for its rank as its id and serves requests to its rank agent.
    """

    # Missed heartbeats, by which a rank without a supervisor learns that its controller is gone.
    max_heartbeat_misses = Integer(clocks.RANK_MISSES, config=True)
    timeout = Float(clocks.REGISTER_S, config=True)

    _imports: threading.Thread | None = None  # the thread that imports torch

    def initialize(self, argv: Sequence[str] | None = None) -> None:
        """
        Initialise the engine, and import torch in a thread meanwhile.

        The rest of the start mostly waits: for a nanny to start, and for replies of the controller.
        """
        if "torch" not in sys.modules:
            work = functools.partial(importlib.import_module, "torch.distributed")
            self._imports = threading.Thread(target=work, name="ddp-lessons-imports")
            self._imports.start()
        super().initialize(argv)

    @default("out_stream_factory")
    def _out_stream_factory_default(self):
        return RankStream

    @default("id")
    def _id_default(self):
        for name in os.environ.get(RANK_FROM, _RANK_VARIABLES).split():
            if name in os.environ:
                return int(os.environ[name])
        return None

    def init_signal(self) -> None:
        """
        Install the rank agent. IPEngine calls this once its shell exists, before any cell runs.
        """
        os.environ["RANK"] = str(self.id)
        # torch's default is the interface of this host's name, which may be any, or loopback.
        host = urlsplit(self.registration_url).hostname
        if host is not None:  # None: the controller uses sockets in a folder, so it is on this host
            bind_groups_towards(host)
        self.agent = RankAgent(self.kernel, self.id)
        self.kernel.shell.agent = self.agent
        self.agent.start()
        self.log.setLevel(self.log_level)  # else the logger makes records that its handler drops
        # Slurm and mpiexec end a rank by SIGTERM, which must end it at once, whatever C code it
        # waits in. Processes that a cell forks would inherit a handler: a process that got the
        # signal before Python had started in it would lose the signal, and live on.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(END_SIGNAL, self._end)
        os.register_at_fork(after_in_child=_take_signals_as_python_does)
        answers = {
            HOST_INFO_REQUEST: lambda content: host_info(content["folder"]),
            SNAPSHOT_REQUEST: lambda content: self.agent.snapshot(),
            STATE_REQUEST: lambda content: self.agent.state(),
            RELEASE_REQUEST: lambda content: self.agent.release(),
            WAKE_REQUEST: lambda content: self.agent.wake(),
            # Where there is no nanny, ipyparallel's own `client.send_signal` arrives here.
            "signal_request": _signal_self,
        }
        self.kernel.control_handlers.update(
            {request: self._reply_to(request, answer) for request, answer in answers.items()}
        )

    def _end(self, signum, frame):
        stop_engine(self, signum, frame)
        if self.agent.busy:  # the event loop stops once the cell has ended
            raise KeyboardInterrupt

    def start_nanny(self, control_url: str) -> "tuple[str, Popen[bytes]]":
        """
        Start ipyparallel's nanny, which reports this rank's end, so that it ignores SIGTERM.

        A SIGTERM to all processes of a rank would otherwise end the nanny before it reports.
        """
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the nanny inherits this
        try:
            return super().start_nanny(control_url)
        finally:
            signal.signal(signal.SIGTERM, before)

    def start_heartbeat(self, hb_ping: str, hb_pong: str, hb_period: int, identity: bytes) -> None:
        """
        Answer the controller's heartbeats, and end this rank when they fail to come.

        The controller registers a rank once it answers.
        """
        if self._imports is not None:
            self._imports.join()  # no cell may see a half-imported torch
        if self.max_heartbeat_misses == 0:
            super().start_heartbeat(hb_ping, hb_pong, hb_period, identity)
            return
        limit_s = self.max_heartbeat_misses * (hb_period + clocks.HEARTBEAT_SLACK_MS) / 1000
        start_orphan_watchdog(self, hb_ping, hb_pong, identity, limit_s)

    def redirect_output(self, iopub_socket: "IOPubThread") -> None:
        """
        Send the output of cells to the kernel, up to the output limit.
        """
        super().redirect_output(iopub_socket)
        streams = cast("list[RankStream]", [sys.stdout, sys.stderr])
        bound, descriptors = OutputLimit(streams), Descriptors()
        self.kernel.shell.events.register("pre_run_cell", bound.begin)
        self.kernel.shell.events.register("post_run_cell", descriptors.put_back)
        self.kernel.shell.events.register("post_run_cell", bound.end)  # after the agent's callback
        self.kernel.watch_output(bound, iopub_socket)

    def _reply_to(self, request, work):
        # The handler runs in the engine's control thread, while the main thread may be blocked.
        def handle(stream, ident, parent):
            answer = work(parent["content"])
            answer = asdict(answer) if is_dataclass(answer) else answer  # type: ignore[arg-type]
            content = {"status": "ok", "answer": answer}
            self.session.send(stream, reply_type(request), content, parent=parent, ident=ident)

        return handle


def _take_signals_as_python_does():
    # This runs in a process that a cell has forked. A SIGINT to that process would release the rank
    # through the agent's pipe.
    signal.set_wakeup_fd(-1)
    if getattr(signal.getsignal(signal.SIGINT), "__module__", "").startswith("ddp_lessons."):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else keep the cell's own handler


def _signal_self(content):
    signum = content["sig"]
    os.kill(os.getpid(), getattr(signal, signum) if isinstance(signum, str) else signum)


def run_engine(
    rank: int, connection_file: str | os.PathLike[str], profile_dir: str | os.PathLike[str]
) -> None:
    """
    Run this process as a rank of the supervisor, until a signal or a request ends it.

    Args:
        rank: This rank, which becomes the engine's id.
        connection_file: ipyparallel's `ipcontroller-...-engine.json`.
        profile_dir: IPython profile folder, for the engine's configuration.
    """
    sys.argv = ["ddp-lessons-rank"]
    engine = RankEngine.instance(
        id=rank,
        url_file=os.fspath(connection_file),
        enable_nanny=False,
        max_heartbeat_misses=0,  # the supervisor ends its ranks; heartbeats would need another port
        # The kernel gives up a start that makes no progress. A rank never gives up by itself.
        timeout=clocks.NEVER_S,
        log_level=logging.ERROR,
    )
    # Colours for a light or dark theme are unreadable on an error's red in the other theme.
    engine.config.InteractiveShell.colors = "nocolor"
    engine.initialize(argv=["--profile-dir", os.fspath(profile_dir)])
    engine.start()


if __name__ == "__main__":
    RankEngine.launch_instance()
