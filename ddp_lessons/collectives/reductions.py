"""
Put numbers of two ranks together: sum, average, product, least, greatest.

Legend: `lower` and `higher` are (n,), from the rank that counts first and from the one after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from .messages import Peers

_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_COMPLEX = {torch.complex64, torch.complex128}
_REAL = _INTEGERS | _FLOATS | {torch.bool}

# Each operation's function of two numbers, and the dtypes that torch's own Gloo supports for it.
_OPS: dict = {
    dist.ReduceOp.SUM: (torch.add, _REAL | _COMPLEX),
    dist.ReduceOp.AVG: (torch.add, _FLOATS | _COMPLEX),
    dist.ReduceOp.PRODUCT: (torch.mul, _REAL),
    dist.ReduceOp.MIN: (torch.minimum, _REAL),
    dist.ReduceOp.MAX: (torch.maximum, _REAL),
}


def check_op(op: dist.ReduceOp.RedOpType, dtype: torch.dtype, peers: Peers) -> None:
    """
    Refuse an operation that has no meaning for a dtype, before the first message.

    Args:
        op: SUM, AVG, PRODUCT, MIN or MAX of `dist.ReduceOp`.
        dtype: The tensor's dtype. Booleans count as 0 and 1, and a sum of them is 1 at most.
        peers: The Peers, for the message.

    Raises:
        BadInput: Another operation; an average of integers; an order of complex numbers.

    Source: torch.distributed documentation, "ReduceOp". Lesson: 02_collectives.
    """
    if op not in _OPS:
        raise peers.fault(
            "Unknown operation: op must be SUM, AVG, PRODUCT, MIN or MAX of dist.ReduceOp",
            op,
            "Choose one of the five",
        )
    if dtype not in _OPS[op][1]:
        raise peers.fault(
            f"Wrong dtype: {_name(op)} has no meaning for these numbers",
            dtype,
            "Convert the tensor first, such as by .float(), or choose another operation",
        )


def combine(
    op: dist.ReduceOp.RedOpType, lower: torch.Tensor, higher: torch.Tensor, out: torch.Tensor
) -> None:
    """
    Write `lower` and `higher`, put together, into `out`, which may be either of the two.

    The ranks' order is kept, as 0.0 and -0.0 have no order of their own and two NaNs may differ:
    only then do ranks that compute the same thing twice get the same bits.

    Args:
        op: An operation that `check_op` let pass.
        lower: (n,) from the ranks that count first.
        higher: (n,) from the ranks after them.
        out: (n,) for the result.
    """
    _OPS[op][0](lower, higher, out=out)


def finish(op: dist.ReduceOp.RedOpType, flat: torch.Tensor, world_size: int) -> None:
    """
    Make an average of a sum: divide once, at the end. Leaves other results alone.

    Args:
        op: An operation that `check_op` let pass.
        flat: (n,) result of all ranks; changed in place.
        world_size: Number of ranks.
    """
    if op == dist.ReduceOp.AVG:
        # Real and imaginary parts by themselves, or a complex division would round twice.
        parts = torch.view_as_real(flat) if flat.is_complex() else flat
        parts.div_(world_size)


def _name(op):
    return str(op).rpartition(".")[2]
