"""
What each launcher starts in benchmarks/launchers.py: join, step, and say how long both took.

The notebook's ranks call `steps` in a cell. Times are taken on rank 0 and written to the file that
LAUNCHED names; BEGAN is the moment at which the launcher was started. With FAILED, a file, rank 1
ends its process once and writes the moment there; then it is counted until the next step is done.
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
    Do an all-reduce and some training steps in the group that there is, and write down the times.
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
    End the process of rank 1 in the middle of the steps, and note when.
    """
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        Path(os.environ["FAILED"]).write_text(str(time.time()))
        os._exit(3)
    dist.all_reduce(torch.ones(1))


def come_back():
    """
    Do the next step, and write down how long after the failure it was done.
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
