"""
Memory that all ranks of one machine read and write.

Each rank makes a piece without a name, and the others open it by way of its process. There is no
file that somebody could forget, and no limit as on /dev/shm, which containers keep at 64 MiB: a
piece is gone with the last process that holds it. Other users do not get at it: /proc shows a
process's files to its own user only.
"""

import os
import secrets

import torch
import torch.distributed as dist

from .alike import check_alike

_NUM_TOKEN_BYTES = 64
"""
Bytes in front of a piece by which it is known. The piece is aligned as torch's own tensors are.
"""


def share_memory(
    num_bytes: int, fault: str | None = None, group: dist.ProcessGroup | None = None
) -> list[torch.Tensor]:
    """
    Make memory on each rank that all ranks of the group have.

    Collective: every rank must call it.

    Args:
        num_bytes: Bytes of each rank's piece; the same on every rank.
        fault: Why this rank cannot take part, as a message that all ranks raise; None if it can.
        group: The process group, or None for the default group.

    Returns:
        list[torch.Tensor]: For each rank of the group its piece: zeros, uint8, (num_bytes,).

    Raises:
        BadInput: On every rank, if some rank has a fault, or cannot open another one's piece.

    Source: man 2 memfd_create; man 5 proc_pid_fd. Linux only. Lesson: 05_replicas.
    """
    token = secrets.token_bytes(_NUM_TOKEN_BYTES)
    number = None
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("ddp-lessons-gradients")
        os.truncate(number, _NUM_TOKEN_BYTES + num_bytes)
        os.pwrite(number, token, 0)
    try:
        owners: list = [None] * dist.get_world_size(group)
        dist.all_gather_object(owners, (os.getpid(), number, token), group=group)
        pieces = [_open(owner, _NUM_TOKEN_BYTES + num_bytes) for owner in owners]
        if fault is None and None in pieces:
            rank, other = dist.get_rank(group), pieces.index(None)
            fault = (
                "No common memory: all ranks must be on one machine, which runs Linux "
                f"(rank {rank} of {len(owners)} cannot reach rank {other}'s). "
                "Use OverlappedReplica."
            )
        check_alike({"fault": fault}, group)  # and by then all have opened all
    finally:
        if number is not None:
            os.close(number)
    return [piece[_NUM_TOKEN_BYTES:] for piece in pieces]


def _open(owner, num_bytes):
    """
    Return the memory that a process has under a number, or None: on another machine there may be
    no such process, or one that has something else there.
    """
    pid, number, token = owner
    path = f"/proc/{pid}/fd/{number}"
    try:
        with open(path, "rb", buffering=0) as file:
            if file.read(len(token)) != token:
                return None
    except OSError:
        return None
    return torch.from_file(path, shared=True, size=num_bytes, dtype=torch.uint8)
