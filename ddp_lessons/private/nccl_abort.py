"""
Private names of torch's NCCL groups, by which a rank is released that waits for a peer on a GPU.
"""

from __future__ import annotations

from ddp_lessons.private import process_groups
from ddp_lessons.private.reaching import register_private_name, uses_private_name

_LOST = "a rank that waits for a peer on a GPU cannot be released, so its variables are lost"


@uses_private_name(
    "torch.distributed.ProcessGroup._get_backend", oldest_promised="torch 2.11", lost=_LOST
)
def abort_nccl() -> None:
    """
    Abort every NCCL communicator of this process, newest first, all in one NCCL group.

    A communicator that is aborted alone may wait for another. torch's public way, the destruction
    of the groups, waits for work that never ends.
    """
    import torch

    table = process_groups.group_tables()
    # A group that was made without a backend's name has NCCL for tensors on the GPU, too.
    groups = [g for g in list(table.pg_map) if "cuda:nccl" in table.pg_backend_config.get(g, "")]
    groups.sort(key=lambda group: table.pg_names.get(group, ""), reverse=True)
    backends = [group._get_backend(torch.device("cuda")) for group in groups]
    if len(backends) > 1:
        backends[0]._group_start()  # type: ignore[attr-defined]  # NCCL's has it
    try:
        for backend in backends:
            backend.abort()
    finally:
        if len(backends) > 1:
            backends[0]._group_end()  # type: ignore[attr-defined]  # NCCL's has it


def _can_group_calls() -> bool:
    # Without NCCL, as in torch for CPUs, no rank needs the name.
    from torch.distributed import distributed_c10d

    nccl = getattr(distributed_c10d, "ProcessGroupNCCL", None)
    return nccl is None or (hasattr(nccl, "_group_start") and hasattr(nccl, "_group_end"))


register_private_name(
    "torch.distributed.ProcessGroupNCCL._group_start",
    oldest_promised="torch 2.11",
    lost=_LOST,
    probe=_can_group_calls,
)
