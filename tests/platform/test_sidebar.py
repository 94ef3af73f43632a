"""
A test of JupyterLab's cluster sidebar: it finds ranks by ipyparallel's cluster files, and can end
them.
"""

import subprocess
import sys

import psutil
from kernels import running_kernel
from waiting import wait_until

# The code that the sidebar's server runs. The test also runs it in another process.
FIND = """
import asyncio
from ipyparallel.cluster.cluster import ClusterManager

async def main():
    manager = ClusterManager()
    manager.load_clusters()
    (cluster,) = (c for key, c in manager.clusters.items() if "ddp-lessons-" in key)
    print([engines.n for engines in cluster.engines.values()], cluster.controller.state)
    client = await cluster.connect_client()
    print(client.ids)
    client.close()
    if {stop}:
        await cluster.stop_cluster()

asyncio.run(main())
"""


def as_sidebar(folder, stop):
    """
    Find the ranks as the sidebar does, and return the lines that it prints.

    Args:
        folder: The IPython folder.
        stop: Whether to stop the ranks.
    """
    done = subprocess.run(
        [sys.executable, "-c", FIND.format(stop=stop)],
        env={"IPYTHONDIR": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_sidebar_lists_ranks_and_ends_them(tmp_path):
    """
    The sidebar shows the number of ranks. Its stop button ends them without leftovers, and the next
    cell says that they are gone.
    """
    with running_kernel(IPYTHONDIR=str(tmp_path)) as kernel:
        started = kernel.run("from ddp_lessons import start_ranks\nranks = start_ranks(2)")
        assert started.status == "ok", started
        pids = [
            *kernel.value("dict(ranks.supervisor.pids)").values(),
            kernel.value("ranks.supervisor.supervisor_pid"),
        ]
        assert as_sidebar(tmp_path, stop=False) == ["[2] running", "[0, 1]"]
        assert kernel.run("%%px\nprint('still here')").text == "[0] still here\n[1] still here\n"
        as_sidebar(tmp_path, stop=True)
        wait_until(
            lambda: not any(psutil.pid_exists(pid) for pid in pids), 20, "the last to be reaped"
        )
        after = kernel.run("%%px\nprint('nobody')")
        assert after.ename == "RanksGone"
        assert not list(tmp_path.glob("profile_default/security/*ddp-lessons*"))
        assert kernel.run("ranks = start_ranks(2)").status == "ok"
