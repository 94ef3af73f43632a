"""
How to read a call: the operations of c10d, and where each keeps its tensors, group and peer.

Every process group that is written in C++ sends its calls through torch's dispatcher, as operations
of the namespace `c10d`. The schemas are torch's; the names are those of `torch.distributed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..private.storages import sparse_parts
from .events import COLLECTIVE, MESSAGE


@dataclass(frozen=True)
class Operation:
    """
    Say where one c10d operation keeps what, as positions in its list of arguments.

    Args:
        name: The name in `torch.distributed`.
        inputs: Position of the tensors that are read.
        outputs: Position of the tensors that are written.
        group: Position of the process group.
        peer: Position of the other rank of a message or of the root, a rank of the group.
        reduce_op: Position of the reduction.
        tag: Position of the tag.
        reads: Who has an input that counts: "all", or "root".
        writes: Who has an output that counts: "all", "root", or "others" (all but the root).
        kind: "collective" or "message".
    """

    name: str
    inputs: int | None = None
    outputs: int | None = None
    group: int = 1
    peer: int | None = None
    reduce_op: int | None = None
    tag: int | None = None
    reads: str = "all"
    writes: str = "all"
    kind: str = COLLECTIVE


OPERATIONS = {
    "allreduce_": Operation("all_reduce", 0, 0, 1, reduce_op=2),
    "allreduce_coalesced_": Operation("all_reduce_coalesced", 0, 0, 1, reduce_op=2),
    "broadcast_": Operation("broadcast", 0, 0, 1, peer=2, reads="root", writes="others"),
    "reduce_": Operation("reduce", 0, 0, 1, peer=3, reduce_op=2, writes="root"),
    "allgather_": Operation("all_gather", 1, 0, 2),
    "_allgather_base_": Operation("all_gather_into_tensor", 1, 0, 2),
    "allgather_coalesced_": Operation("all_gather_coalesced", 1, 0, 2),
    "allgather_into_tensor_coalesced_": Operation("all_gather_into_tensor_coalesced", 1, 0, 2),
    "reduce_scatter_": Operation("reduce_scatter", 1, 0, 2, reduce_op=3),
    "_reduce_scatter_base_": Operation("reduce_scatter_tensor", 1, 0, 2, reduce_op=3),
    "reduce_scatter_tensor_coalesced_": Operation(
        "reduce_scatter_tensor_coalesced", 1, 0, 2, reduce_op=3
    ),
    "gather_": Operation("gather", 1, 0, 2, peer=3),
    "scatter_": Operation("scatter", 1, 0, 2, peer=3),
    "alltoall_": Operation("all_to_all", 1, 0, 2),
    "alltoall_base_": Operation("all_to_all_single", 1, 0, 2),
    "barrier": Operation("barrier"),  # its tensor only says which device
    "monitored_barrier_": Operation("monitored_barrier"),
    "send": Operation("send", inputs=0, peer=2, tag=3, kind=MESSAGE),
    "recv_": Operation("recv", outputs=0, peer=2, tag=3, kind=MESSAGE),
    "recv_any_source_": Operation("recv", outputs=0, tag=2, kind=MESSAGE),
}

_REDUCTIONS = {kind.value: name for name, kind in dist.ReduceOp.RedOpType.__members__.items()}


def read_call(
    operation: Operation, args: Sequence[Any]
) -> dict[str, str | int | tuple[int, ...] | None]:
    """
    Return the fields of an Event that the arguments of one call tell.

    Args:
        operation: One of OPERATIONS.
        args: The boxed arguments that torch's dispatcher hands to a kernel.

    Returns:
        dict: Fields of Event, ranks numbered as in the default group.
    """
    group = dist.ProcessGroup.unbox(args[operation.group])
    ranks = group_ranks(group)
    here = group.rank()
    peer = None if operation.peer is None else args[operation.peer]
    input_bytes, dtype = _read_tensors(args, operation.inputs)
    output_bytes = input_bytes
    if operation.outputs != operation.inputs:
        output_bytes, output_dtype = _read_tensors(args, operation.outputs)
        dtype = dtype or output_dtype
    is_reader = operation.reads == "all" or here == peer
    is_writer = operation.writes == "all" or (here == peer) == (operation.writes == "root")
    return {
        "kind": operation.kind,
        "name": operation.name,
        "rank": ranks[here],
        "group": group.group_name,
        "ranks": ranks,
        "peer": None if peer is None else ranks[peer],
        "tag": None if operation.tag is None else args[operation.tag],
        "input_bytes": input_bytes if is_reader else 0,
        "output_bytes": output_bytes if is_writer else 0,
        "dtype": dtype,
        "reduce_op": _REDUCTIONS[args[operation.reduce_op].op()] if operation.reduce_op else None,
    }


def group_ranks(group: dist.ProcessGroup) -> tuple[int, ...]:
    """
    Return the ranks of a group, numbered as in the default group, in the order of the group.

    A group that was made by hand is unknown to `torch.distributed`: its own numbers are returned.
    """
    try:
        return tuple(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return tuple(range(group.size()))


def tensor_bytes(tensor: torch.Tensor) -> int:
    """
    Return the bytes of a tensor's elements; of a sparse one, those of its indices and values.
    """
    if tensor.layout == torch.sparse_coo:
        return sum(map(tensor_bytes, sparse_parts(tensor)))
    return tensor.numel() * tensor.element_size()


def dtype_name(tensor: torch.Tensor) -> str:
    """
    Return the name of a tensor's element type, such as "float32".
    """
    return str(tensor.dtype).removeprefix("torch.")


def _read_tensors(args, position):
    """
    Return the bytes and the dtype of the tensors at a position: one, a list, or lists of lists.
    """
    if position is None:
        return 0, None
    tensors = args[position]
    if isinstance(tensors, torch.Tensor):
        return tensor_bytes(tensors), dtype_name(tensors)
    if tensors and isinstance(tensors[0], list):
        tensors = [tensor for inner in tensors for tensor in inner]
    num_bytes = 0
    for tensor in tensors:
        num_bytes += tensor_bytes(tensor)
    return num_bytes, dtype_name(tensors[0]) if tensors else None
