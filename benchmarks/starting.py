"""
Measure the seconds from nothing to the first all-reduce of 4 ranks: ours, ipyparallel, torchrun.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernel import BenchmarkFailed, ending, environment, running_kernel

NUM_RANKS = 4
START_OURS = f"""\
from ddp_lessons import start_ranks
ranks = start_ranks({NUM_RANKS}, device="cpu")
"""
FIRST_ALL_REDUCE = f"""\
%%px
import torch
import torch.distributed as dist
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == {NUM_RANKS}
"""
_START_STOCK = f"""\
import ipyparallel as ipp
cluster = ipp.Cluster(n={NUM_RANKS})
client = cluster.start_and_connect_sync(activate=True)
client[:].scatter("rank", range({NUM_RANKS}), flatten=True)
client[:]["store"] = {{store!r}}
"""
_JOIN_STOCK = f"""\
%%px
import torch
import torch.distributed as dist
dist.init_process_group(
    "gloo", init_method=f"file://{{store}}", rank=rank, world_size={NUM_RANKS}
)
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == {NUM_RANKS}
"""
_SCRIPT = Path(__file__).with_name("first_all_reduce.py")
TORCHRUN = ("--standalone", "--nproc-per-node", str(NUM_RANKS))
_TIMEOUT_S = 120


def start_ours(folder):
    """
    Start ranks in a fresh kernel as a lesson does.

    Args:
        folder: An empty folder.

    Returns:
        dict: `start_ours_s`: cell with the import, and cell with the all-reduce, together.
    """
    with running_kernel(folder) as kernel:
        seconds = kernel.seconds_of(START_OURS, FIRST_ALL_REDUCE)
        kernel.run_well("ranks.stop()")
    return {"start_ours_s": seconds}


def start_stock(folder):
    """
    Start engines in a fresh kernel with ipyparallel alone, and join them to a group.

    Args:
        folder: An empty folder.

    Returns:
        dict: `start_stock_s`: as `start_ours`.
    """
    store = str(Path(folder) / "store")
    with running_kernel(folder) as kernel:
        seconds = kernel.seconds_of(_START_STOCK.format(store=store), _JOIN_STOCK)
        kernel.run_well("cluster.stop_cluster_sync()")
    return {"start_stock_s": seconds}


def start_torchrun(folder):
    """
    Run a script that does one all-reduce with torchrun.

    Returns:
        dict: `start_torchrun_s`, the whole command; `reach_torchrun_s`, up to the all-reduce.
    """
    command = [sys.executable, "-m", "torch.distributed.run", *TORCHRUN, str(_SCRIPT)]
    began_s = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=folder,
    )
    try:
        out, err = process.communicate(timeout=_TIMEOUT_S)
    except BaseException:
        with ending(process.pid):
            process.kill()
            process.wait()
        raise
    ended_s = time.monotonic()
    if process.returncode != 0:
        raise BenchmarkFailed(f"torchrun failed with {process.returncode}:\n{err[-2000:]}")
    return {
        "start_torchrun_s": ended_s - began_s,
        "reach_torchrun_s": float(out.split()[-1]) - began_s,
    }


def warm_up():
    """
    Bring what the contestants import into the file cache, so that the first has no disadvantage.
    """
    modules = "torch.distributed.run, ipyparallel.engine.app, ddp_lessons.ranks.warden"
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True, timeout=_TIMEOUT_S)


def measure(round_number):
    """
    Let all three start once, each round in another order.

    Args:
        round_number: From 0.

    Returns:
        dict: From the name of a sample to its number.
    """
    if round_number == 0:
        warm_up()
    contestants = [start_ours, start_stock, start_torchrun]
    first = round_number % len(contestants)
    samples = {}
    for contestant in contestants[first:] + contestants[:first]:
        with tempfile.TemporaryDirectory() as folder:
            samples |= contestant(folder)
    return samples
