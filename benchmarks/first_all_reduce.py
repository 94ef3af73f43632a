"""
Do one all-reduce: the script that `torchrun` is measured with.

    torchrun --standalone --nproc-per-node 4 benchmarks/first_all_reduce.py
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
done_s = time.monotonic()
assert total.item() == dist.get_world_size()
if dist.get_rank() == 0:
    print(done_s)
dist.destroy_process_group()
