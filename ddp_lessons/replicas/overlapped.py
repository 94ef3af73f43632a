"""
The replica that sends a bucket while backward is still computing the next.

Shapes: a bucket is a flat tensor that lives as long as the replica; gradients are views of it.

    backward  | layer 3 | layer 2 | layer 1 |
    messages            | bucket 0: layer 3 | bucket 1: layers 2 and 1 |
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import torch.distributed as dist

from ..errors import BadInput
from .buckets import MIB, make_bucket
from .simple import BucketedReplica

if TYPE_CHECKING:
    from torch import nn

    class Handle(Protocol):
        """
        An asynchronous operation that a rank can wait for.
        """

        def wait(self) -> object: ...


OVERLAPPED_CAP_BYTES = 8 * MIB
"""
When a bucket is full. Nothing hides the last one, which leaves when backward is over, so it should
be small; yet a message of a third of torch's 25 MiB still costs far more by its bytes than by its
latency.
"""


class OverlappedReplica(BucketedReplica):
    """
    Average each bucket as soon as its last gradient is ready, while backward goes on.

    Buckets are always sent in the same order, also if one that comes later is ready first: ranks
    whose gradients are ready in different orders still send the same message at the same time.

    Collective: every rank must make it, with the same module and arguments.

    Args:
        args, options: As BucketedReplica's.
        bucket_cap_bytes: Bytes at which a bucket is full.
        gradient_as_bucket_view: Let `.grad` be a view of the bucket, which saves a copy and the
            memory of one more gradient. As in DDP a gradient is then overwritten by the next
            averaged backward: clone what you want to keep.

    Raises:
        BadInput: As BucketedReplica; in backward, if a parameter is reached a second time, as
            reentrant checkpoints that share one do.

    Source: S. Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3. Lesson: 05_replicas.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup | None = None,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        bucket_cap_bytes: int = OVERLAPPED_CAP_BYTES,
        gradient_as_bucket_view: bool = True,
        **options: int,
    ) -> None:
        flags = (broadcast_buffers, find_unused_parameters)
        super().__init__(
            module,
            group,
            *flags,
            bucket_cap_bytes,
            **options,  # type: ignore[arg-type]  # what is left is a cap
        )
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self._flats = []
        self._views: list = [None] * len(self.trained)  # where averages come
        self._rooms = self._views  # where this rank's gradients go
        self._bucket_of = [0] * len(self.trained)
        for number, bucket in enumerate(self.buckets):
            flat, views = make_bucket([self.trained[index] for index in bucket])
            self._flats.append(flat)
            for index, view in zip(bucket, views, strict=True):
                self._views[index], self._bucket_of[index] = view, number
        self._works = []
        self._start_backward()

    def _start_backward(self):
        for work in self._take_works():  # of a backward that raised: Gloo may still write
            outlast(work)
        self._is_ready = [False] * len(self.trained)
        self._num_missing = [len(bucket) for bucket in self.buckets]

    def _gradient_ready(self, index):
        if self._is_ready[index]:  # what was sent was only a part of it
            raise BadInput(
                "Gradient ready twice: backward must reach a parameter once "
                f"(got {self.names[index]}, rank {dist.get_rank(self.group)} of "
                f"{self.world_size}). Use checkpoint(..., use_reentrant=False)."
            )
        self._fill(index)
        if self.gradient_as_bucket_view:
            self.trained[index].grad = self._views[index]  # frees the one that autograd made
        self._launch_full_buckets()

    def _fill(self, index):
        self._weighted(self.trained[index], out=self._rooms[index])
        self._is_ready[index] = True
        self._num_missing[self._bucket_of[index]] -= 1

    def _launch_full_buckets(self):
        while len(self._works) < len(self.buckets) and not self._num_missing[len(self._works)]:
            self._works.append(self._launch(len(self._works)))

    def _launch(self, number):
        """
        Start to add a bucket up over the ranks; return a handle to wait for.
        """
        flat = self._flats[number]
        return dist.all_reduce(flat, group=self.group, async_op=True) if flat.numel() else None

    def _averages(self):
        for index, is_ready in enumerate(self._is_ready):
            if not is_ready:  # what autograd did not reach adds its old gradient, or zeros
                parameter = self.trained[index]
                if self.find_unused_parameters and parameter.grad is self._views[index]:
                    parameter.grad = parameter.grad.clone()  # it may have to stay as it is
                self._fill(index)
        self._launch_full_buckets()
        self._finish_works()
        return self._views

    def _finish_works(self):
        for work in self._take_works():
            work.wait()

    def _take_works(self):
        works, self._works = self._works, []
        return [work for work in works if work is not None]

    def _store(self, parameter, average):
        if self.gradient_as_bucket_view:
            parameter.grad = average
        else:
            super()._store(parameter, average)


def outlast(work: Handle) -> None:
    """
    Wait until a message of an earlier step is over: it has come, or has failed with its group.

    A rank that needed it saw its error in that step. This step's messages raise without a group.

    Args:
        work: The handle of an all-reduce.
    """
    with contextlib.suppress(RuntimeError):
        work.wait()
