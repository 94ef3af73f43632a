"""
Measure the memory of a GPU before, with and after ranks that are killed: nothing may be left.

    python benchmarks/proof_memory.py RANKS DEVICE ANSWER

With the CPU as a stand-in, it counts the memory of the processes, on Linux only.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil
from footprint import pss_mib
from kernel import running_kernel

HELD_MIB = 256
"""
The MiB that each rank allocates: far more than a driver's rounding.
"""

GRANULE_BYTES = 2 << 20
"""
CUDA's driver rounds memory up to a multiple of this, so it is the least that can be left.
"""

PATIENCE_S = 20
_START = """\
from ddp_lessons import start_ranks
ranks = start_ranks({num_ranks}, device="{device}")
"""
_HOLD = f"""\
%%px
import torch
import torch.distributed as dist
from ddp_lessons.process_group import rank_device
held = None  # of the cell before: torch would have to find room for both
held = torch.ones({HELD_MIB} << 18, device=rank_device())
total = torch.ones(1, device=rank_device())
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
"""


def gpu_bytes():
    """
    Return the bytes in use on all visible GPUs, by any process, as the driver counts them.
    """
    import torch

    pairs = map(torch.cuda.mem_get_info, range(torch.cuda.device_count()))
    return sum(total - free for free, total in pairs)


def own_bytes():
    """
    Return the bytes of this process's descendants. A shared page is divided by its processes.
    """
    used_mib = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError, ValueError):  # it has ended: it has no memory
            used_mib += pss_mib(process.pid)
    return int(used_mib * 2**20)


def settled(used_bytes, most_bytes):
    """
    Poll until at most `most_bytes` are in use, for up to `PATIENCE_S`. Return the last count.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := used_bytes()) > most_bytes and time.monotonic() < deadline_s:
        time.sleep(0.1)  # no event tells when the driver has freed memory
    return found


def most_when_stopped(counts, num_ranks, device):
    """
    Return the most bytes that may be in use when the ranks are stopped and the kernel still runs.
    """
    if device == "cuda":
        return counts["before"] + GRANULE_BYTES
    # On a CPU the kernel itself uses memory, so only the part of the ranks is known.
    return counts["with ranks"] - num_ranks * (HELD_MIB << 20)


def measure(num_ranks, device, used_bytes):
    """
    Kill a rank between cells, then the kernel with all its ranks, and look at the memory.

    Args:
        num_ranks: Number of ranks.
        device: "cuda", or "cpu" for a stand-in.
        used_bytes: Function that returns the bytes in use: `gpu_bytes` or `own_bytes`.

    Returns:
        dict: {moment, such as "a rank killed": bytes in use then}.
    """
    start, held_bytes = _START.format(num_ranks=num_ranks, device=device), HELD_MIB << 20
    counts = {"before": used_bytes()}
    with tempfile.TemporaryDirectory() as folder, running_kernel(folder) as kernel:
        kernel.run_well(start)
        kernel.run_well(_HOLD)
        counts["with ranks"] = used_bytes()
        culprit = num_ranks // 2
        os.kill(kernel.value(f"ranks.supervisor.pids[{culprit}]"), signal.SIGKILL)
        counts["a rank killed"] = settled(used_bytes, counts["with ranks"] - held_bytes)
        told = kernel.run("%%px\nx = 1")
        assert "RankDied" in told.error, told
        kernel.run_well(_HOLD)
        counts["it was replaced"] = settled(used_bytes, counts["with ranks"] + GRANULE_BYTES)
        kernel.run_well("ranks.stop()")
        counts["ranks stopped"] = settled(used_bytes, most_when_stopped(counts, num_ranks, device))
        kernel.run_well(start)
        kernel.run_well(_HOLD)
        os.kill(kernel.pid, signal.SIGKILL)
    counts["kernel killed"] = settled(used_bytes, counts["before"] + GRANULE_BYTES)
    return counts


def judge(counts, num_ranks, device):
    """
    Return what is wrong with the counts. Memory of another program on the same GPU is a fault, too.

    Returns:
        list[str]: Sentences; empty if nothing is left.
    """
    held_bytes, wrong = HELD_MIB << 20, []

    def at_most(moment, most_bytes):
        if counts[moment] > most_bytes:
            left_mib = (counts[moment] - most_bytes) / 2**20
            wrong.append(f"{moment}: {left_mib:.0f} MiB more than there should be")

    if counts["with ranks"] - counts["before"] < num_ranks * held_bytes:
        wrong.append("with ranks: less than they hold, so that nothing is known")
    at_most("a rank killed", counts["with ranks"] - held_bytes)
    # A rank that replaces the killed one needs about as much memory.
    at_most("it was replaced", counts["with ranks"] + held_bytes // 2)
    at_most("ranks stopped", most_when_stopped(counts, num_ranks, device))
    at_most("kernel killed", counts["before"] + GRANULE_BYTES)
    return wrong


def main(argv):
    """
    Measure the memory, judge the counts, and write the answer file.
    """
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("num_ranks", type=int)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("answer", type=Path)
    arguments = parser.parse_args(argv)
    used_bytes = gpu_bytes if arguments.device == "cuda" else own_bytes
    counts = measure(arguments.num_ranks, arguments.device, used_bytes)
    wrong = judge(counts, arguments.num_ranks, arguments.device)
    outcome = {"name": "memory after a kill", "status": "failed" if wrong else "passed"}
    outcome |= {"why": "\n".join(wrong), "counts_bytes": counts}
    arguments.answer.write_text(json.dumps({"outcomes": [outcome]}))
    for moment, used in counts.items():
        print(f"{moment:<16} {used / 2**20:10.1f} MiB")
    print(outcome["status"], outcome["why"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
