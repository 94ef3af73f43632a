"""
Private names of ipyparallel's Cluster, of its launchers and of its engine.
"""

from __future__ import annotations

import threading
from types import FrameType
from typing import TYPE_CHECKING

from ddp_lessons.private.reaching import uses_private_name

if TYPE_CHECKING:
    from ipyparallel import Cluster
    from ipyparallel.cluster.launcher import LocalProcessLauncher
    from ipyparallel.engine.app import IPEngine


@uses_private_name(
    "ipyparallel.Cluster()._async_thread",
    "ipyparallel.Cluster()._loop_started",
    "ipyparallel.Cluster()._thread_loop",
    oldest_promised="ipyparallel 9.2",
    lost="a thread of each set of ranks is left in the kernel",
)
def end_cluster_thread(cluster: Cluster, *, begins_within_s: float) -> None:
    """
    End the thread in which ipyparallel runs a cluster's coroutines, if there is one.

    ipyparallel never ends it, and makes another one if it is needed again.

    Args:
        cluster: The Cluster.
        begins_within_s: Seconds to wait for the thread's event loop.
    """
    thread, cluster._async_thread = cluster._async_thread, None
    if thread in threading.enumerate() and cluster._loop_started.wait(begins_within_s):
        cluster._thread_loop.add_callback(cluster._thread_loop.stop)
        thread.join()
        cluster._thread_loop.close()


@uses_private_name(
    "ipyparallel.cluster.launcher.LocalProcessLauncher()._popen_process",
    oldest_promised="ipyparallel 9.2",
    lost="the end of mpiexec is noticed seconds later, by the heartbeat",
)
def has_ended(launcher: LocalProcessLauncher) -> bool:
    """
    Return whether the process that a launcher has started has ended.
    """
    return launcher._popen_process.poll() is not None


@uses_private_name(
    "ipyparallel.engine.app.IPEngine._signal_stop",
    oldest_promised="ipyparallel 9.2",
    lost="a rank that is stopped politely ends without its exit functions",
)
def stop_engine(engine: IPEngine, signum: int, frame: FrameType | None) -> None:
    """
    Have an engine end once its event loop has its turn, as ipyparallel does for SIGTERM.
    """
    engine._signal_stop(signum, frame)
