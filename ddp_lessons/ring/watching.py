"""
A ring watched from outside: its chunks before each step, and how long a message takes.

Lesson: 03_ring.
"""

from __future__ import annotations

import time
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ddp_lessons.collectives import Peers
from ddp_lessons.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def chunks_at_each_step(
    loop: Callable[[Sequence[torch.Tensor]], None] | ModuleType,
    chunks: Sequence[torch.Tensor],
    group: dist.ProcessGroup | None = None,
) -> list[list[float]]:
    """
    Call a loop of a ring, and return what was in each chunk before each step and at the end.

    Collective: every rank must call it.

    Args:
        loop: A function of the chunks that starts the messages of each step by one call of
            `dist.batch_isend_irecv`. Until version 0.3.0 it may be a module such as `ring.steps`,
            as in version 0.1.0, which causes a warning.
        chunks: One number each, so that a chunk can be read at a glance. Changed in place. With a
            module, it is one tensor of shape (world size,).
        group: The process group of a module; None is the default group. A loop has its own.

    Returns:
        list: For each moment, the first before any step, the number of each chunk.

    Raises:
        BadInput: The loop is neither a function nor a module.
    """
    if isinstance(loop, ModuleType):
        warnings.warn(
            "chunks_at_each_step(module, flat, group) is the call of version 0.1.0, and ends with "
            "0.3.0. Write chunks_at_each_step(loop, chunks): the loop is a function of the chunks, "
            "such as ring_reduce_scatter of lesson 03, and flat.tensor_split(world_size) makes "
            "chunks.",
            FutureWarning,
            stacklevel=2,
        )
        return _numbers_at_each_step(loop, chunks, group)
    if not callable(loop):
        raise BadInput(
            "No loop of a ring: expected a function of the chunks, such as ring_reduce_scatter of "
            f"lesson 03 (got {loop!r}). Write that function first."
        )
    held: list[list[float]] = []
    start_messages = dist.batch_isend_irecv

    def record_and_start(p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
        held.append([chunk.item() for chunk in chunks])
        return start_messages(p2p_op_list)

    dist.batch_isend_irecv = record_and_start
    try:
        loop(chunks)
    finally:
        dist.batch_isend_irecv = start_messages
    return [*held, [chunk.item() for chunk in chunks]]


def _numbers_at_each_step(algorithm: Any, flat: Any, group: dist.ProcessGroup | None) -> list:
    """
    Do what `chunks_at_each_step` of version 0.1.0 did.
    """
    held: list[list[float]] = []

    class WatchedPeers(Peers):
        def exchange(self, *message):
            held.append(flat.tolist())
            super().exchange(*message)

    algorithm.all_reduce(flat, dist.ReduceOp.SUM, WatchedPeers(group))
    return [*held, flat.tolist()]


def one_way_s(num_bytes: int, device: torch.device | str = "cpu", num_tries: int = 40) -> float:
    """
    Return the seconds of one message between ranks 0 and 1: there and back again, and halved.

    It takes the shortest of all tries, which other programs left alone.

    Collective: ranks 0 and 1 must call it; others may, and measure nothing.

    Args:
        num_bytes: Bytes of the message.
        device: Where it lies.
        num_tries: How often it is sent.
    """
    box, times = torch.zeros(num_bytes, dtype=torch.uint8, device=device), []
    rank = dist.get_rank()
    for _ in range(num_tries):
        start = time.perf_counter()
        if rank == 0:
            dist.send(box, 1)
            dist.recv(box, 1)
        elif rank == 1:
            dist.recv(box, 0)
            dist.send(box, 0)
        box[-1:].tolist()  # a GPU is done when its numbers can be read
        times.append((time.perf_counter() - start) / 2)
    return min(times)
