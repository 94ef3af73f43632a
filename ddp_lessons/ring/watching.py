"""
What a ring does, seen from outside: its chunks before each step, and how long a message takes.

Lesson: 03_ring.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ddp_lessons.collectives import Peers

if TYPE_CHECKING:
    from types import ModuleType


def chunks_at_each_step(
    algorithm: ModuleType, flat: torch.Tensor, group: dist.ProcessGroup | None = None
) -> list[list[float]]:
    """
    Run an all-reduce, and return what was in each chunk before each step and at the end.

    Collective: every rank of the group must call it.

    Args:
        algorithm: A module with `all_reduce(flat, op, peers)` whose steps are calls of
            `peers.exchange`, such as `ring.steps`.
        flat: (w,): one number a chunk, so that a chunk can be read at a glance. Changed in place.
        group: The process group; None is the default group.

    Returns:
        list: For each moment, the first before any step, the w numbers.
    """
    seen: list[list[float]] = []

    class Watched(Peers):
        def exchange(
            self, outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int
        ) -> None:
            seen.append(flat.tolist())
            super().exchange(outgoing, to, incoming, source)

    algorithm.all_reduce(flat, dist.ReduceOp.SUM, Watched(group))
    return [*seen, flat.tolist()]


def one_way_s(num_bytes: int, device: torch.device | str = "cpu", num_tries: int = 40) -> float:
    """
    Return the seconds of one message between ranks 0 and 1: there and back again, and halved.

    Of all tries it takes the least, which other programs left alone.

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
