"""
Do one all-reduce: the script that `torchrun` is measured with.

    torchrun --standalone --nproc-per-node 4 benchmarks/first_all_reduce.py [cpu | cuda]
"""

import os
import sys
import time

import torch
import torch.distributed as dist

device, backend, num_gpus = (sys.argv[1:] or ["cpu"])[0], "gloo", torch.cuda.device_count()
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % num_gpus)
    backend = "nccl" if int(os.environ["WORLD_SIZE"]) <= num_gpus else "gloo"
dist.init_process_group(backend)
total = torch.ones(1, device=device)
dist.all_reduce(total)
assert total.item() == dist.get_world_size()  # a GPU is done when its numbers can be read
done_s = time.monotonic()
if dist.get_rank() == 0:
    print(done_s)
dist.destroy_process_group()
