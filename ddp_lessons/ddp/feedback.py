"""
Communication hooks that send less, and make up for it: half precision, top-k.

Shapes: a bucket is flat (n,). Each rank has a residual (n,): what it did not send so far.

Error feedback: a rank sends `target = gradient / world_size + residual` in few bytes and keeps
`residual = target - sent`. The part lost in one step is sent in a later one, so that the sum of
all steps is off by one residual, not by one error a step. Sources: F. Seide et al., "1-Bit
Stochastic Gradient Descent", Interspeech 2014; S. P. Karimireddy et al., "Error Feedback Fixes
SignSGD", ICML 2019.
"""

import math

import torch
import torch.distributed as dist

from ..errors import BadInput


class _FeedbackState:
    """
    The state of each rank between steps: residuals by parameter, as DDP rebuilds its buckets.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, error_feedback: bool = True) -> None:
        self.group = group
        self.error_feedback = error_feedback
        self.bytes_sent = 0
        """
        Bytes that this rank has handed to collectives so far.
        """
        self._residuals = {}

    def target(self, bucket: dist.GradBucket) -> torch.Tensor:
        """
        Return what this rank ought to send: its share of the mean, and what it owes. (n,)
        """
        target = bucket.buffer() / dist.get_world_size(self.group)
        if self.error_feedback:
            for parameter, part in _parts(bucket, target):
                if id(parameter) in self._residuals:
                    part.add_(self._residuals[id(parameter)])
        return target

    def keep(self, bucket: dist.GradBucket, residual: torch.Tensor) -> None:
        """
        Keep what was not sent. (n,)
        """
        if self.error_feedback:
            for parameter, part in _parts(bucket, residual):
                self._residuals[id(parameter)] = part


def _parts(bucket, flat):
    parameters = bucket.parameters()
    sizes = [parameter.numel() for parameter in parameters]
    return zip(parameters, flat.split(sizes), strict=True)


class HalfPrecisionState(_FeedbackState):
    """
    State of `half_precision_hook`: `DDP.register_comm_hook(state, half_precision_hook)`.

    Args:
        group: The process group of the DDP model, or None for the default group.
        error_feedback: Keep what rounding took away and add it to the next gradient.
        dtype: torch.bfloat16, or torch.float16: finer steps, but no number beyond 65,504.

    Raises:
        BadInput: Another dtype.

    Lesson: 06_ddp.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        error_feedback: bool = True,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__(group, error_feedback)
        if dtype not in (torch.bfloat16, torch.float16):
            raise BadInput(
                f"Bad dtype: it must be bfloat16 or float16 (got {dtype}). Choose one of them."
            )
        self.dtype = dtype


def half_precision_hook(
    state: HalfPrecisionState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """
    Average a bucket in half precision: half the bytes of float32, on any device.

    Feedback makes up for rounding before the message. Adding up in half precision rounds again on
    the way, which no rank sees: with more ranks that part grows.

    Collective: every rank must call it. DDP does.

    Args:
        state: A HalfPrecisionState.
        bucket: torch's GradBucket, (n,).

    Returns:
        torch.futures.Future: It holds the averaged bucket, (n,), in the bucket's own dtype.

    Source: torch documentation, "DDP Communication Hooks", `bf16_compress_hook`. Lesson: 06_ddp.
    """
    target, buffer = state.target(bucket), bucket.buffer()
    message = target.to(state.dtype)
    state.keep(bucket, target - message)
    state.bytes_sent += message.numel() * message.element_size()
    work = dist.all_reduce(message, group=state.group, async_op=True)
    return work.get_future().then(lambda _: buffer.copy_(message))


class TopKState(_FeedbackState):
    """
    State of `top_k_hook`: `DDP.register_comm_hook(state, top_k_hook)`.

    Args:
        group: The process group of the DDP model, or None for the default group.
        error_feedback: Keep what was not sent and add it to the next gradient.
        share: Which share of a bucket's elements is sent: more than 0, at most 1.

    Raises:
        BadInput: The share is out of bounds.

    Lesson: 06_ddp.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        error_feedback: bool = True,
        share: float = 0.01,
    ) -> None:
        super().__init__(group, error_feedback)
        if not 0 < share <= 1:
            raise BadInput(
                f"Bad share: it must be more than 0 and at most 1 (got {share}). "
                "Give the share of elements to send."
            )
        self.share = share


def top_k_hook(state: TopKState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """
    Average only the elements of a bucket that are largest on some rank.

    Each rank sends its own k largest elements and where they stand to all others, which add them
    up in rank order. An all-gather carries them, so that the bytes a rank receives grow with
    the world size: a small share pays, a large one does not.

    Collective: every rank must call it. DDP does.

    Args:
        state: A TopKState.
        bucket: torch's GradBucket, (n,).

    Returns:
        torch.futures.Future: It holds the averaged bucket, (n,): zero where no rank sent anything.

    Source: Y. Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.1. Lesson: 06_ddp.
    """
    target, buffer = state.target(bucket), bucket.buffer()
    num_sent = min(len(target), math.ceil(state.share * len(target)))
    positions = target.abs().topk(num_sent, sorted=False).indices  # (k,)
    values = target[positions]
    state.keep(bucket, target.index_fill(0, positions, 0))
    positions = positions.to(torch.int32)  # half the bytes; a bucket has fewer than 2**31 elements
    world_size = dist.get_world_size(state.group)
    all_values = [torch.empty_like(values) for _ in range(world_size)]
    all_positions = [torch.empty_like(positions) for _ in range(world_size)]
    first = dist.all_gather(all_values, values, group=state.group, async_op=True)
    second = dist.all_gather(all_positions, positions, group=state.group, async_op=True)
    state.bytes_sent += sum(m.numel() * m.element_size() for m in (values, positions))

    def add_up(_):
        first.wait()
        buffer.zero_()
        # The same order on every rank: another order would round differently, and replicas drift.
        for at, value in zip(all_positions, all_values, strict=True):
            buffer.index_add_(0, at, value)
        return buffer

    return second.get_future().then(add_up)
