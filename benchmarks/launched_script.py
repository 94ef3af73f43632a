"""
The script that benchmarks/launchers.py starts by each launcher: join, step, and write the times.

The notebook's ranks call `steps` in a cell. Rank 0 takes the times, and writes them to a file: the
environment variable LAUNCHED names it. BEGAN holds the time at which the launcher was started. If
FAILED names a file, rank 1 ends its process once, and writes the time to that file. Then the script
measures the seconds from there to the end of the next all-reduce.
"""

import json
import os
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NUM_STEPS = 60


def steps():
    """
    Do an all-reduce and some training steps in the default group, and write the times to a file.
    """
    dist.all_reduce(torch.ones(1))
    started_s = time.time() - float(os.environ["BEGAN"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]))
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(64, 512)
    times = []
    for _ in range(NUM_STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        told = {"start_s": started_s, "step_s": median(times[NUM_STEPS // 4 :])}
        Path(os.environ["LAUNCHED"]).write_text(json.dumps(told))


def fail():
    """
    End the process of rank 1 between two all-reduces, and write the time to a file.
    """
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        Path(os.environ["FAILED"]).write_text(str(time.time()))
        os._exit(3)
    dist.all_reduce(torch.ones(1))


def come_back():
    """
    Do an all-reduce, and write the seconds from the failure to its end to a file.
    """
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        back_s = time.time() - float(Path(os.environ["FAILED"]).read_text())
        Path(os.environ["LAUNCHED"]).write_text(json.dumps({"back_s": back_s}))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if "FAILED" not in os.environ:
        steps()
    elif os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        fail()
    else:
        come_back()
    dist.destroy_process_group()
