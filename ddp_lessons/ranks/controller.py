"""
What ipyparallel's controller is told when it starts for a set of ranks.
"""

import os

LOOPBACK = "127.0.0.1"
EVERY_INTERFACE = "*"


def controller_arguments(profile_dir, cluster_id, listen=LOOPBACK):
    """
    Return the command line of the controller of one set of ranks.

    Args:
        profile_dir: IPython profile folder that gets the connection files.
        cluster_id: Name of this set of ranks, unlike any other.
        listen: Address to listen on. Ranks on other machines need EVERY_INTERFACE.
    """
    return [
        f"--ip={listen}",
        f"--profile-dir={os.fspath(profile_dir)}",
        f"--cluster-id={cluster_id}",
        "--log-level=ERROR",
        # A rank counts as registered after its first heartbeat: seconds at the stock 3 s.
        "--HeartMonitor.period=100",
        # The warden tells of a death at once. A heart that is late is only busy.
        "--HeartMonitor.max_heartmonitor_misses=6000",
        # One process with threads in place of eight starts sooner and holds less memory.
        "--IPController.use_threads=True",
        "--IPController.broadcast_scheduler_depth=0",
    ]
