"""
Join and leave a process group.

Legend: rank r of w, where w is the world size. A store is a dictionary that all ranks share.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

DEFAULT_TIMEOUT_S = 1800.0
"""
How long a collective waits for its peers before it gives up: torch's own default for Gloo.
"""


def rank_device():
    """
    Return the torch.device of this rank: "cpu", or the GPU that was chosen for it.

    Outside ranks that `start_ranks` started, it is the GPU of LOCAL_RANK if there is one.
    """
    name = os.environ.get("DDP_LESSONS_DEVICE")
    if name is None and torch.cuda.is_available():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        name = f"cuda:{local_rank % torch.cuda.device_count()}"
    return torch.device(name or "cpu")


def join_group(store_file, rank, world_size, backend="gloo", device=None, timeout_s=None):
    """
    Join the default process group through a file that all ranks can open.

    Collective: every rank must call it with the same file, world size and backend.

    Args:
        store_file: Path of the file that serves as store. It must not exist before, or be of no
            other group: a used file makes ranks meet those of an earlier group.
        rank: This rank, from 0.
        world_size: Number of ranks.
        backend: "gloo" or "nccl".
        device: The torch.device of this rank; binds NCCL to its GPU. None on the CPU.
        timeout_s: Seconds that a collective waits for its peers. Default 1,800.

    Raises:
        RuntimeError: A rank did not come in time, or this process is in a group already.

    Source: torch.distributed documentation, "Initialization". Lesson: 01_process_group.
    """
    store = dist.FileStore(os.fspath(store_file), world_size)
    on_gpu = device is not None and torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s or DEFAULT_TIMEOUT_S),
        device_id=torch.device(device) if on_gpu and backend == "nccl" else None,
    )


def leave_group():
    """
    Leave the default process group and all subgroups. Does nothing outside a group.

    Source: torch.distributed documentation, "Shutdown". Lesson: 01_process_group.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
