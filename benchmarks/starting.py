"""
Measure the seconds from nothing to the first all-reduce of all ranks: ours, ipyparallel, torchrun.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kernel import BenchmarkFailed, ending, environment, running_kernel

NUM_RANKS = 4
_ALL_REDUCE = """\
total = torch.ones(1, device="{device}")
dist.all_reduce(total)
assert total.item() == {num_ranks}
"""
_START_STOCK = """\
import ipyparallel as ipp
cluster = ipp.Cluster(n={num_ranks})
client = cluster.start_and_connect_sync(activate=True)
client[:].scatter("rank", range({num_ranks}), flatten=True)
client[:]["store"] = {store!r}
"""
_JOIN_STOCK = """\
%%px
import torch
import torch.distributed as dist
backend, num_gpus = "gloo", torch.cuda.device_count()
if "{device}" == "cuda":
    torch.cuda.set_device(rank % num_gpus)
    backend = "nccl" if {num_ranks} <= num_gpus else "gloo"
dist.init_process_group(
    backend, init_method=f"file://{{store}}", rank=rank, world_size={num_ranks}
)
"""
_SCRIPT = Path(__file__).with_name("first_all_reduce.py")
TORCHRUN = ("--standalone", "--nproc-per-node")
_TIMEOUT_S = 120


def start_cell(num_ranks=NUM_RANKS, device="cpu"):
    """
    Return a cell that starts ranks.
    """
    return f"""\
from ddp_lessons import start_ranks
ranks = start_ranks({num_ranks}, device="{device}")
"""


def all_reduce_cell(num_ranks=NUM_RANKS, device="cpu"):
    """
    Return a cell that imports torch on the ranks and does an all-reduce.
    """
    imports = "%%px\nimport torch\nimport torch.distributed as dist\n"
    return imports + _ALL_REDUCE.format(num_ranks=num_ranks, device=device)


START_OURS = start_cell()
FIRST_ALL_REDUCE = all_reduce_cell()


def start_ours(folder, num_ranks, device):
    """
    Start ranks in a fresh kernel as a lesson does.

    Args:
        folder: An empty folder.
        num_ranks: Number of ranks.
        device: "cpu" or "cuda", as for `start_ranks`.

    Returns:
        dict: `start_ours_s`, the seconds of the cell that starts ranks and the cell with the
        all-reduce together.
    """
    with running_kernel(folder) as kernel:
        cells = start_cell(num_ranks, device), all_reduce_cell(num_ranks, device)
        seconds = kernel.seconds_of(*cells)
        kernel.run_well("ranks.stop()")
    return {"start_ours_s": seconds}


def start_stock(folder, num_ranks, device):
    """
    Start engines in a fresh kernel with ipyparallel alone, and join them to a group.

    Args:
        folder: An empty folder.
        num_ranks: Number of ranks.
        device: "cpu" or "cuda".

    Returns:
        dict: `start_stock_s`, the seconds of the two cells together (see `start_ours`).
    """
    store = str(Path(folder) / "store")
    with running_kernel(folder) as kernel:
        where = {"num_ranks": num_ranks, "device": device}
        join = (_JOIN_STOCK + _ALL_REDUCE).format(**where)
        seconds = kernel.seconds_of(_START_STOCK.format(store=store, **where), join)
        kernel.run_well("cluster.stop_cluster_sync()")
    return {"start_stock_s": seconds}


def start_torchrun(folder, num_ranks, device):
    """
    Run a script under torchrun that does one all-reduce.

    Args:
        folder: An empty folder.
        num_ranks: Number of ranks.
        device: "cpu" or "cuda".

    Returns:
        dict: `start_torchrun_s`, the seconds of the whole command; `reach_torchrun_s`, the seconds
        up to the end of its all-reduce.
    """
    command = [sys.executable, "-m", "torch.distributed.run", *TORCHRUN, str(num_ranks)]
    command += [str(_SCRIPT), device]
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
    Read the modules that all ways import into the file cache, so that the first way is not slower.
    """
    modules = (
        "torch.distributed.run, ipyparallel.engine.app, ddp_lessons.ranks.supervisor.supervisor"
    )
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True, timeout=_TIMEOUT_S)


def measure(round_number, num_ranks=NUM_RANKS, device="cpu"):
    """
    Measure one start by each of the three ways, in an order that rotates from round to round.

    Args:
        round_number: Number of the round, from 0.
        num_ranks: Number of ranks.
        device: "cpu" or "cuda".

    Returns:
        dict: {name of a sample: seconds}.
    """
    if round_number == 0:
        warm_up()
    contestants = [start_ours, start_stock, start_torchrun]
    first = round_number % len(contestants)
    samples = {}
    for contestant in contestants[first:] + contestants[:first]:
        with tempfile.TemporaryDirectory() as folder:
            samples |= contestant(folder, num_ranks, device)
    return samples
