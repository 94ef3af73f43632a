"""
The overlapped replica for ranks of one machine: gradients lie where every rank can read them.

Shapes: a bucket is, on each rank, one flat tensor (n,) that all ranks see, and one of its own for
the average; w ranks.

    all_reduce   w ranks  -> TCP ->  parts add up  -> TCP ->  everybody has it
    here         w ranks  fill their buckets;  each adds up what is there: w reads, one write

Only the news that a bucket is full travels as a message, of one number. Gloo sends all numbers by
TCP, on one machine too: each is copied into the system and out of it, there and back. With 2 ranks
on 2 cores that was a third of a training step.
"""

import torch
import torch.distributed as dist

from .buckets import bucket_views
from .memory import share_memory
from .overlapped import OverlappedReplica, outlast

_ALIGNED_BYTES = 64  # where buckets begin, as torch's own tensors do


class SharedMemoryReplica(OverlappedReplica):
    """
    Average each bucket as soon as it is full on every rank, in memory that all ranks share.

    All ranks add up in the order of ranks, so that all have the same bits. It takes memory for one
    more copy of the gradients, and each rank reads all w of them: for many ranks on a machine a
    reduce-scatter within that memory would read less.

    Collective: every rank must make it, with the same module and arguments.

    Args:
        module, group, options: As OverlappedReplica's.

    Raises:
        BadInput: As OverlappedReplica; a parameter is not on the CPU, or the ranks are not on one
            machine.

    Source: the transport within a host of NCCL, which GPUs have anyway. Lesson: 05_replicas.
    """

    def __init__(
        self, module: torch.nn.Module, group: dist.ProcessGroup | None = None, **options: int
    ) -> None:
        super().__init__(module, group, **options)  # type: ignore[arg-type]  # flags are bool
        spans = [-(-flat.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for flat in self._flats]
        pieces = share_memory(sum(spans), _device_fault(self), group)
        parts = [piece.split(spans) for piece in pieces]
        self._of_ranks = [  # for each bucket what each rank puts in
            [part[number][: flat.nbytes].view(flat.dtype) for part in parts]
            for number, flat in enumerate(self._flats)
        ]
        self._rooms = [None] * len(self.trained)
        for number, bucket in enumerate(self.buckets):
            own = self._of_ranks[number][dist.get_rank(group)]
            views = bucket_views(own, [self.trained[index] for index in bucket])
            for index, view in zip(bucket, views, strict=True):
                self._rooms[index] = view
        self._news = torch.zeros(len(self.buckets) + 1, 1).unbind()  # a number for each message
        self._all_have_read = None  # the message that says so of the last step

    def _start_backward(self):
        super()._start_backward()
        self._num_averaged = 0

    def _fill(self, index):
        if self._all_have_read is not None:  # or the last step's would be written over
            outlast(self._all_have_read)  # a rank that raised instead of reading reads no more
            self._all_have_read = None
        super()._fill(index)

    def _gradient_ready(self, index):
        super()._gradient_ready(index)
        self._average_full_buckets()

    def _launch(self, number):
        """
        Say that this rank has filled a bucket; return a handle to wait for all ranks' word.
        """
        return dist.all_reduce(self._news[number], group=self.group, async_op=True)

    def _average_full_buckets(self):
        for work in self._works[self._num_averaged :]:
            if not work.is_completed():
                return
            work.wait()  # raises if the message failed
            self._average(self._num_averaged)
            self._num_averaged += 1

    def _average(self, number):
        average, (first, *others) = self._flats[number], self._of_ranks[number]
        if others:
            torch.add(first, others[0], out=average)
        else:
            average.copy_(first)
        for other in others[1:]:
            average.add_(other)

    def _averages(self):
        averages = super()._averages()  # waits until all ranks have filled all buckets
        for number in range(self._num_averaged, len(self.buckets)):
            self._average(number)
        self._all_have_read = dist.all_reduce(self._news[-1], group=self.group, async_op=True)
        return averages


def _device_fault(replica):
    for name, parameter in zip(replica.names, replica.trained, strict=True):
        if not parameter.is_cpu:
            return (
                "Gradients on a device: every parameter must be on the CPU "
                f"(got {parameter.device} for {name}). Use OverlappedReplica."
            )
    return None
