"""
A training step that is played: sleeping stands for computing, and the link between ranks is slow.

A machine with fewer cores than ranks cannot show what ranks of their own would do. A rank that
sleeps needs no core. So each part takes the time that one chooses, and what is left to see is what
the lesson is about: who overlaps with what, and who waits for whom. The messages are real.

Legend: w ranks; a bucket of B bytes goes round a ring in 2 (w - 1) messages of B / w bytes. A span
is (kind, start_s, end_s, label), by this process's monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ..collectives import Peers
from ..errors import BadInput
from ..process_group import rank_device
from ..ring import steps
from .splitting import COMMUNICATION, COMPUTE

if TYPE_CHECKING:
    from ..costs import Link
    from .measuring import AllReduce
    from .splitting import Span


class SlowPeers(Peers):
    """
    The ranks of a group over a slow link: each message takes as long as the link says, or longer.

    Args:
        link: A `costs.Link`.
        group: The process group, or None for the default group.

    Lesson: 11_speed.
    """

    def __init__(self, link: Link, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self.link = link

    def exchange(
        self, outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int
    ) -> None:
        """
        Send and receive at once, after the time that the link takes for what is sent.
        """
        time.sleep(self.link.message_s(outgoing.nbytes))
        super().exchange(outgoing, to, incoming, source)


def slow_all_reduce(link: Link) -> AllReduce:
    """
    Return an all-reduce round a ring over a slow link.

    Args:
        link: A `costs.Link`.

    Returns:
        function: (tensor, group=None), a flat tensor, changed in place; all ranks must call it.

    Lesson: 11_speed.
    """

    def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
        steps.all_reduce(tensor, dist.ReduceOp.SUM, SlowPeers(link, group))

    return all_reduce


class PlayedStep:
    """
    A step of data-parallel training: forward, backward in parts, a bucket after each, optimizer.

    Buckets are sent by a thread of their own, one after the other, while backward goes on; the
    optimizer waits for the last of them.

    Args:
        forward_s: Seconds of the forward pass.
        backward_s: Seconds of each part of the backward pass.
        bucket_bytes: For each part the bytes of the bucket that is ready after it.
        link: A `costs.Link`.
        optimizer_s: Seconds of the optimizer's step.
        group: The process group, or None for the default group.

    Raises:
        BadInput: There are not as many buckets as parts of backward.

    Source: Li et al., "PyTorch Distributed", VLDB 2020, on DDP's overlap. Lesson: 11_speed.
    """

    def __init__(
        self,
        forward_s: float,
        backward_s: Sequence[float],
        bucket_bytes: Sequence[int],
        link: Link,
        optimizer_s: float = 0.0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if len(backward_s) != len(bucket_bytes):
            raise BadInput(
                f"Bad buckets: expected one for each of {len(backward_s)} parts of backward (got "
                f"{len(bucket_bytes)}). Leave no part without."
            )
        self.forward_s, self.backward_s = forward_s, list(backward_s)
        self.optimizer_s = optimizer_s
        self._peers = SlowPeers(link, group)
        # Gloo sends from the CPU's memory, NCCL from the GPU's.
        device = rank_device() if dist.get_backend(group) == "nccl" else "cpu"
        self._buckets = [torch.zeros(size // 4, device=device) for size in bucket_bytes]

    def run(self, late_s: float = 0.0) -> list[Span]:
        """
        Make one step.

        Collective: every rank must call it.

        Args:
            late_s: How much longer this rank's forward pass takes.

        Returns:
            list: This rank's spans. One rank alone has no communication.
        """
        spans = [self._compute("forward", self.forward_s + late_s)]
        with ThreadPoolExecutor(max_workers=1) as sender:
            under_way = []
            for number, (seconds, bucket) in enumerate(
                zip(self.backward_s, self._buckets, strict=True), start=1
            ):
                spans.append(self._compute("backward", seconds))
                called_s = time.monotonic()
                under_way.append((number, called_s, sender.submit(self._all_reduce, bucket)))
            for number, called_s, done in under_way:
                spans.append((COMMUNICATION, called_s, done.result(), f"bucket {number}"))
        if self._peers.world_size == 1:
            spans = [span for span in spans if span[0] == COMPUTE]
        if self.optimizer_s:
            spans.append(self._compute("optimizer", self.optimizer_s))
        return spans

    def _compute(self, label, seconds):
        start_s = time.monotonic()
        time.sleep(seconds)
        return COMPUTE, start_s, time.monotonic(), label

    def _all_reduce(self, bucket):
        steps.all_reduce(bucket, dist.ReduceOp.SUM, self._peers)
        return time.monotonic()
