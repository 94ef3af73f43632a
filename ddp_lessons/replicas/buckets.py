"""
Plan which tensors travel together, and lay them out in one flat tensor.

Shapes: a bucket of tensors with n_1, n_2, ... elements is one flat tensor (n_1 + n_2 + ...,);
each tensor is a view of its part, in its own shape and strides.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from ..errors import BadInput

MIB = 1 << 20
BUCKET_CAP_BYTES = 25 * MIB
"""
When a bucket is full: torch's own default for DDP (`bucket_cap_mb=25`).
"""
FIRST_BUCKET_CAP_BYTES = 1 * MIB
"""
The first bucket is small, as in torch's DDP, so that communication starts early in backward.
"""


def plan_buckets(
    tensors: Sequence[torch.Tensor],
    cap_bytes: int = BUCKET_CAP_BYTES,
    first_cap_bytes: int | None = None,
) -> list[tuple[int, ...]]:
    """
    Group tensors into buckets in the order given; a bucket closes once it holds `cap_bytes`.

    A tensor is never split, so that a bucket may hold more than the cap. Tensors of different
    dtypes or devices never share a bucket. A bucket stands where its first tensor does.

    Args:
        tensors: Sequence of tensors; of a tensor only size, dtype and device matter. Give
            parameters in reverse, for this is about the order in which gradients become ready.
        cap_bytes: Bytes at which a bucket is full.
        first_cap_bytes: The same for the first bucket of each dtype and device, or None.

    Returns:
        list[tuple[int, ...]]: For each bucket the positions of its tensors.

    Raises:
        BadInput: A cap is not positive.

    Source: S. Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.2. Lesson: 05_replicas.
    """
    first_cap_bytes = cap_bytes if first_cap_bytes is None else first_cap_bytes
    if min(cap_bytes, first_cap_bytes) <= 0:
        raise BadInput(
            "Bad bucket cap: it must be more than 0 bytes "
            f"(got {min(cap_bytes, first_cap_bytes)}). Give a larger cap."
        )
    closed, is_open, num_bytes, caps = [], {}, {}, {}
    for index, tensor in enumerate(tensors):
        kind = (tensor.dtype, tensor.device)
        is_open.setdefault(kind, []).append(index)
        num_bytes[kind] = num_bytes.get(kind, 0) + tensor.numel() * tensor.element_size()
        if num_bytes[kind] >= caps.get(kind, first_cap_bytes):
            closed.append(tuple(is_open.pop(kind)))
            num_bytes[kind], caps[kind] = 0, cap_bytes
    return sorted([*closed, *(tuple(bucket) for bucket in is_open.values())])


def make_bucket(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """
    Make room for tensors that travel together.

    Args:
        tensors: Tensors of one dtype and device, at least one.

    Returns:
        tuple: A flat tensor of zeros, and a list of views of it: one in the shape of each tensor.
    """
    num_elements = sum(tensor.numel() for tensor in tensors)
    flat = torch.zeros(num_elements, dtype=tensors[0].dtype, device=tensors[0].device)
    return flat, bucket_views(flat, tensors)


def bucket_views(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """
    Return for each tensor a view, in its shape, of its part of a flat tensor that holds them all.
    """
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [_shaped_like(part, tensor) for part, tensor in zip(parts, tensors, strict=True)]


def _shaped_like(part, tensor):
    # A transposed weight keeps its strides, so that copies run straight through memory. One
    # with holes (a slice of something) cannot; torch then gives a meta twin other strides.
    if torch.empty_like(tensor, device="meta").stride() == tensor.stride():
        return part.as_strided(tensor.shape, tensor.stride(), part.storage_offset())
    return part.view(tensor.shape)


def broadcast_from_first(
    tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None
) -> None:
    """
    Overwrite tensors with those of the group's rank 0, some MiB a message.

    Collective: every rank must call it, with tensors of the same shapes and dtypes.

    Args:
        tensors: Tensors of any shapes, strides and dtypes; changed in place, but for rank 0.
        group: The process group, or None for the default group.

    Lesson: 05_replicas.
    """
    tensors = [tensor.detach() for tensor in tensors]
    for bucket in plan_buckets(tensors):
        members = [tensors[index] for index in bucket]
        flat, views = make_bucket(members)
        if not flat.numel():
            continue
        is_first = dist.get_rank(group) == 0
        for member, view in zip(members, views, strict=True):
            if is_first:
                view.copy_(member)
        dist.broadcast(flat, group_src=0, group=group)
        for member, view in zip(members, views, strict=True):
            if not is_first:
                member.copy_(view)
