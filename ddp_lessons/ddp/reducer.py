"""
The work of DDP's reducer: the buckets that it sent, their order, and the overlap with backward.

Shapes: a bucket of parameters with n_1, n_2, ... elements is one flat tensor (n_1 + n_2 + ...,).
The reducer starts with one bucket for each dtype, watches one backward, and then makes new
buckets in the order in which gradients became ready. With `find_unused_parameters` it starts with
buckets of the usual size, parameters in reverse, and keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from ..errors import BadInput
from ..private.autograd import ddp_logging_data

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor
    from torch.futures import Future
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel

_NS_PER_S = 1e9


@dataclass(frozen=True)
class Bucket:
    """
    A bucket: its place in the order of sending, the names of its parameters, and its size.
    """

    index: int
    names: tuple[str, ...]
    num_elements: int
    num_bytes: int


@dataclass(frozen=True)
class Overlap:
    """
    Seconds of one backward, of its communication, and of the time that both went on.
    """

    backward_s: float
    communication_s: float
    overlap_s: float

    @property
    def share(self) -> float:
        """
        The part of communication that backward hid, from 0 to 1.
        """
        return self.overlap_s / self.communication_s if self.communication_s else 0.0


class BucketRecorder:
    """
    Note every bucket that DDP sends, step by step, and let a hook send it.

    Args:
        ddp_model: A DistributedDataParallel without a communication hook; gets one here.
        hook: A communication hook; by default torch's plain average.
        state: The hook's first argument.

    Source: torch documentation, "DDP Communication Hooks". Lesson: 06_ddp.
    """

    def __init__(
        self,
        ddp_model: DistributedDataParallel,
        hook: Callable[[Any, dist.GradBucket], Future[Tensor]] = allreduce_hook,
        state: object = None,
    ) -> None:
        self._names = _names_of(ddp_model)
        self._hook, self._state = hook, state
        self._open: list[Bucket] = []
        self.steps: list[tuple[Bucket, ...]] = []
        """
        For each averaged backward the Buckets that were sent, in order.
        """
        ddp_model.register_comm_hook(self, _record_and_send)

    def record(self, bucket: dist.GradBucket) -> None:
        """
        Note one GradBucket.
        """
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        flat = bucket.buffer()
        self._open.append(
            Bucket(bucket.index(), names, flat.numel(), flat.numel() * flat.element_size())
        )
        if bucket.is_last():
            self.steps.append(tuple(self._open))
            self._open = []


def _record_and_send(recorder, bucket):
    recorder.record(bucket)
    return recorder._hook(recorder._state, bucket)


def buckets_before_rebuild(ddp_model: DistributedDataParallel) -> list[int]:
    """
    Return the sizes in bytes of the buckets that DDP starts with, in the order of sending.

    Lesson: 06_ddp.
    """
    return _numbers(ddp_logging_data(ddp_model)["bucket_sizes"])


def rebuilt_buckets(ddp_model: DistributedDataParallel) -> list[Bucket]:
    """
    Return the Buckets that DDP made after its first backward, in the order of sending.

    Args:
        ddp_model: A DistributedDataParallel that has begun its second forward.

    Raises:
        BadInput: It has not rebuilt its buckets yet, or never will.

    Lesson: 06_ddp.
    """
    data = ddp_logging_data(ddp_model)
    if data["find_unused_parameters"]:
        raise BadInput(
            "Buckets never rebuilt: DDP must not look for unused parameters "
            "(got find_unused_parameters=True). Use a BucketRecorder."
        )
    if not data.get("has_rebuilt_buckets"):
        raise BadInput(
            "Buckets not rebuilt: DDP must have begun its second forward "
            f"(got {data.get('iteration', 0)} finished). Run two steps first."
        )
    trained = _trained(ddp_model)
    buckets = []
    members_of = data["rebuilt_per_bucket_param_indices"].split(",")
    for index, (num_bytes, members) in enumerate(
        zip(_numbers(data["rebuilt_bucket_sizes"]), members_of, strict=True)
    ):
        named = [trained[int(position)] for position in members.split()]
        num_elements = sum(parameter.numel() for _, parameter in named)
        buckets.append(Bucket(index, tuple(name for name, _ in named), num_elements, num_bytes))
    return buckets


def ready_order(ddp_model: DistributedDataParallel) -> list[str]:
    """
    Return the names of parameters in the order in which their gradients were last ready.

    DDP writes it down at the beginning of a forward, and only for some steps: ask for all of them
    by `ddp_model._set_ddp_runtime_logging_sample_rate(1)`.

    Lesson: 06_ddp.
    """
    order = ddp_logging_data(ddp_model).get("prev_iteration_grad_ready_order_indices", "")
    trained = _trained(ddp_model)
    return [trained[position][0] for position in _numbers(order)]


def overlap(ddp_model: DistributedDataParallel) -> Overlap:
    """
    Return how much of the last measured step's communication backward hid, by DDP's own timers.

    Returns:
        Overlap: In seconds; zeros before the second forward. DDP measures its first ten steps and
            then every hundredth, unless `_set_ddp_runtime_logging_sample_rate` was called.

    Lesson: 06_ddp.
    """
    data = ddp_logging_data(ddp_model)
    names = (
        "backward_compute_time",
        "backward_comm_time",
        "backward_compute_comm_overlap_time",
    )
    return Overlap(*(data.get(name, 0) / _NS_PER_S for name in names))


def parameter_bytes(module: Module) -> int:
    """
    Return the bytes of a module's parameters on this rank; tied ones count once.

    Lesson: 06_ddp.
    """
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _trained(ddp_model):
    named = ddp_model.module.named_parameters()
    return [(name, parameter) for name, parameter in named if parameter.requires_grad]


def _names_of(ddp_model):
    return {id(parameter): name for name, parameter in _trained(ddp_model)}


def _numbers(text):
    return [int(number) for number in text.replace(",", " ").split()]
