"""
What each launcher starts in benchmarks/launchers.py: join, step, and say how long both took.

The notebook's ranks call `steps` in a cell. Times are taken on rank 0 and written to the file that
LAUNCHED names; BEGAN is the moment at which the launcher was started.
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


if __name__ == "__main__":
    dist.init_process_group("gloo")
    steps()
    dist.destroy_process_group()
