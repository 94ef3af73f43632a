"""
The collectives that need no root, by torch's names and arguments, over any algorithm.

Legend: n numbers in a tensor, w ranks. An algorithm is a module such as `hub` or `rounds`: its
functions take flat (n,) tensors and ranks in the group. Here is all that such functions need not
care about: shapes, strides, devices, ranks of subgroups, and what is refused before the first
message. A refusal comes on every rank that made the same mistake; only what ranks tell each other
can be compared between them.

Source of every meaning here: torch.distributed documentation, "Collective functions".
Lesson: 02_collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from .arguments import check_list, check_tensors
from .messages import Peers
from .reductions import check_op

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    import torch


class AllRankCalls:
    """
    The three collectives that a ring has as well: all ranks give, and all ranks get.

    Args:
        algorithm: Module with `all_reduce`, `all_gather` and `reduce_scatter`.
    """

    def __init__(self, algorithm: ModuleType) -> None:
        self._algorithm = algorithm

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._algorithm.__name__})"

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """
        Put the tensors of all ranks together in `tensor` of every rank.

        Collective: every rank of the group must call it, with tensors of one size and dtype.

        Args:
            tensor: Any shape, written in place. All ranks get the same bits.
            op: SUM, AVG, PRODUCT, MIN or MAX of `dist.ReduceOp`. An average is divided once, after
                the sum, as torch does on Gloo; NaN anywhere makes NaN.
            group: The process group; None is the default group.

        Raises:
            BadInput: This process is not in the group, or `op` does not suit the dtype.
        """
        peers = Peers(group)
        check_tensors([tensor], "tensor", peers, written=True)
        check_op(op, tensor.dtype, peers)
        flat = peers.flatten(tensor)
        self._algorithm.all_reduce(flat, op, peers)
        peers.put_back(flat, tensor)

    def all_gather(
        self,
        tensor_list: list[torch.Tensor] | tuple[torch.Tensor, ...],
        tensor: torch.Tensor,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """
        Fill `tensor_list[r]` of every rank with `tensor` of rank r.

        Collective: every rank of the group must call it, with tensors of one size and dtype.

        Args:
            tensor_list: One tensor a rank, shaped as `tensor`, written in place.
            tensor: Any shape; left as it is.
            group: The process group; None is the default group.

        Raises:
            BadInput: This process is not in the group, or a tensor does not fit.
        """
        peers = Peers(group)
        check_tensors([tensor], "tensor", peers)
        check_list(tensor_list, "tensor_list", peers, like=tensor, written=True)
        parts = [peers.flatten(one) for one in tensor_list]
        self._algorithm.all_gather(peers.flatten(tensor), parts, peers)
        put_back_all(parts, tensor_list, peers)

    def reduce_scatter(
        self,
        output: torch.Tensor,
        input_list: list[torch.Tensor] | tuple[torch.Tensor, ...],
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """
        Put all ranks' `input_list[r]` together in `output` of rank r.

        Collective: every rank of the group must call it, with tensors of one size and dtype.

        Args:
            output: Any shape, written in place.
            input_list: One tensor a rank, shaped as `output`; left as they are.
            op: SUM, AVG, PRODUCT, MIN or MAX of `dist.ReduceOp`.
            group: The process group; None is the default group.

        Raises:
            BadInput: This process is not in the group, a tensor does not fit, or `op` does not suit
                the dtype.
        """
        peers = Peers(group)
        check_tensors([output], "output", peers, written=True)
        check_list(input_list, "input_list", peers, like=output)
        check_op(op, output.dtype, peers)
        flat = peers.flatten(output)
        parts = [peers.flatten(one) for one in input_list]
        self._algorithm.reduce_scatter(flat, parts, op, peers)
        peers.put_back(flat, output)


def put_back_all(
    flats: Iterable[torch.Tensor], tensors: Iterable[torch.Tensor], peers: Peers
) -> None:
    """
    Write flat tensors into the tensors that they were made from.
    """
    for flat, tensor in zip(flats, tensors, strict=True):
        peers.put_back(flat, tensor)
