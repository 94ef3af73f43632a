"""
Measure the memory of ranks that have torch loaded. Pages that several share are divided by them.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from kernel import running_kernel
from starting import FIRST_ALL_REDUCE, NUM_RANKS, START_OURS

_ALONE = "import sys, torch; print('ready', flush=True); sys.stdin.read()"


def measure(round_number):
    """
    Measure idle ranks, then one process that has imported torch and nothing else of this runs.

    Args:
        round_number: From 0.

    Returns:
        dict: From the name of a sample to its MiB; empty where the system does not tell.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        return {}
    alone_mib = _alone_mib()
    with tempfile.TemporaryDirectory() as folder, running_kernel(folder) as kernel:
        for cell in (START_OURS, FIRST_ALL_REDUCE, "import os"):
            kernel.run_well(cell)
        ranks_mib = [pss_mib(pid) for pid in kernel.value("ranks.view.apply_sync(os.getpid)")]
        started = psutil.Process(kernel.pid).children(recursive=True)
        started_mib = sum(pss_mib(process.pid) for process in started)
        kernel.run_well("ranks.stop()")
    return {
        "rank_mib": max(ranks_mib),
        "alone_mib": alone_mib,
        "started_mib": started_mib,
        "all_alone_mib": NUM_RANKS * alone_mib,
    }


def pss_mib(pid):
    """
    Return the proportional memory of a process: its own pages, and its share of shared ones.

    Args:
        pid: Process id.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"No Pss line in smaps_rollup of process {pid}")


def _alone_mib():
    command = [sys.executable, "-c", _ALONE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        process.stdout.readline()
        return pss_mib(process.pid)
