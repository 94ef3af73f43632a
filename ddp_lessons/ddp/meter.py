"""
The bytes that a communication hook saves, and the accuracy that it costs.

Shapes: a bucket is flat (n,), and so is its average.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    from .feedback import HalfPrecisionState, TopKState

    State: TypeAlias = "ExactState | HalfPrecisionState | TopKState | PowerSGDState"


@dataclass
class ExactState:
    """
    State of `exact_hook`.

    Args:
        group: The process group of the DDP model, or None for the default group.
        bytes_sent: Bytes that this rank has handed to collectives so far.
    """

    group: dist.ProcessGroup | None = None
    bytes_sent: int = 0


def exact_hook(state: ExactState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """
    Average a bucket as DDP does without a hook, and count its bytes.

    Collective: every rank must call it. DDP does.

    Args:
        state: An ExactState.
        bucket: torch's GradBucket, (n,).

    Returns:
        torch.futures.Future: It holds the averaged bucket, (n,).

    Source: torch documentation, "DDP Communication Hooks", `allreduce_hook`. Lesson: 06_ddp.
    """
    flat = bucket.buffer()
    flat.mul_(1 / dist.get_world_size(state.group))
    state.bytes_sent += flat.numel() * flat.element_size()
    work = dist.all_reduce(flat, group=state.group, async_op=True)
    return work.get_future().then(lambda _: flat)


class HookMeter:
    """
    Measure a hook against the exact average, bucket by bucket.

    Every bucket is also averaged exactly, which costs a message more: measure, then train without.
    Attributes add up over all steps.

    Args:
        ddp_model: A DistributedDataParallel without a communication hook; gets one here.
        hook: The hook to measure.
        state: Its state.
        group: The process group of the DDP model, or None for the default group.

    Lesson: 06_ddp.
    """

    def __init__(
        self,
        ddp_model: torch.nn.parallel.DistributedDataParallel,
        hook: Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]],
        state: "State",
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.hook, self.state, self.group = hook, state, group
        self.exact_bytes = 0
        """
        Bytes of all buckets as they are: what no compression would send.
        """
        self._square_error, self._square_exact = 0.0, 0.0
        ddp_model.register_comm_hook(self, _measure)

    @property
    def relative_error(self) -> float:
        """
        Norm of all errors over the norm of all exact averages.
        """
        return (self._square_error / self._square_exact) ** 0.5 if self._square_exact else 0.0

    @property
    def bytes_sent(self) -> int:
        """
        Bytes that the hook of this rank has handed to collectives.
        """
        return bytes_sent(self.state)

    def _note(self, exact, sent):
        self._square_exact += exact.double().square().sum().item()
        self._square_error += (sent.double() - exact.double()).square().sum().item()


def bytes_sent(state: "State") -> int:
    """
    Return the bytes that a hook has handed to collectives, by its state.

    Args:
        state: A state of this package; or torch's PowerSGDState, which counts elements (of
            float32) and only from the step on at which it starts to compress.

    Lesson: 06_ddp.
    """
    if hasattr(state, "bytes_sent"):
        return state.bytes_sent
    return state.total_numel_after_compression * torch.float32.itemsize


def _measure(meter, bucket):
    flat = bucket.buffer()
    exact = flat / dist.get_world_size(meter.group)
    meter.exact_bytes += flat.numel() * flat.element_size()
    dist.all_reduce(exact, group=meter.group)

    def note(future):
        value = future.value()
        sent = value[0] if isinstance(value, list) else value
        meter._note(exact, sent)
        return sent

    return meter.hook(meter.state, bucket).then(note)
