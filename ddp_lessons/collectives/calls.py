"""
Every collective, by torch's names and arguments, over any algorithm.

Legend: n numbers in a tensor, w ranks. `all_rank_calls` has the three that a ring has too.

Source of every meaning here: torch.distributed documentation, "Collective functions".
Lesson: 02_collectives.
"""

import torch
import torch.distributed as dist

from .all_rank_calls import AllRankCalls, put_back_all
from .arguments import check_list, check_root_list, check_tensors
from .messages import Peers
from .reductions import check_op


class Calls(AllRankCalls):
    """
    Every collective, by one algorithm.

    Args:
        algorithm: Module with the functions of `hub`.
    """

    def broadcast(
        self, tensor: torch.Tensor, src: int | None = None, group: dist.ProcessGroup | None = None
    ) -> None:
        """
        Fill `tensor` of every rank with the numbers of rank `src`.

        Collective: every rank of the group must call it, with tensors of one size and dtype.

        Args:
            tensor: Any shape. Read on `src`, written in place on the others.
            src: Rank in the default group; None is the group's first.
            group: The process group; None is the default group.

        Raises:
            BadInput: `src` or this process is not in the group, or the tensor is no dense one.
        """
        peers = Peers(group)
        src = peers.in_group(src, "src")
        check_tensors([tensor], "tensor", peers, written=peers.rank != src)
        flat = peers.flatten(tensor)
        self._algorithm.broadcast(flat, src, peers)
        if peers.rank != src:
            peers.put_back(flat, tensor)

    def scatter(
        self,
        tensor: torch.Tensor,
        scatter_list: list[torch.Tensor] | tuple[torch.Tensor, ...] | None = None,
        src: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """
        Fill `tensor` of each rank r with `scatter_list[r]` of rank `src`.

        Collective: every rank of the group must call it, with tensors of one size and dtype.

        Args:
            tensor: Any shape, written in place.
            scatter_list: On `src` one tensor a rank, shaped as `tensor`; elsewhere None.
            src: Rank in the default group; None is the group's first.
            group: The process group; None is the default group.

        Raises:
            BadInput: `src` or this process is not in the group, or a tensor does not fit.
        """
        peers = Peers(group)
        src = peers.in_group(src, "src")
        check_tensors([tensor], "tensor", peers, written=True)
        check_root_list(scatter_list, "scatter_list", src, peers, like=tensor)
        flat = peers.flatten(tensor)
        parts = [peers.flatten(one) for one in scatter_list or ()]
        self._algorithm.scatter(flat, parts, src, peers)
        peers.put_back(flat, tensor)

    def gather(
        self,
        tensor: torch.Tensor,
        gather_list: list[torch.Tensor] | tuple[torch.Tensor, ...] | None = None,
        dst: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """
        Fill `gather_list[r]` of rank `dst` with `tensor` of each rank r.

        Collective: every rank of the group must call it, with tensors of one size and dtype.

        Args:
            tensor: Any shape; left as it is.
            gather_list: On `dst` one tensor a rank, shaped as `tensor`, written in place; elsewhere
                None.
            dst: Rank in the default group; None is the group's first.
            group: The process group; None is the default group.

        Raises:
            BadInput: `dst` or this process is not in the group, or a tensor does not fit.
        """
        peers = Peers(group)
        dst = peers.in_group(dst, "dst")
        check_tensors([tensor], "tensor", peers)
        check_root_list(gather_list, "gather_list", dst, peers, like=tensor, written=True)
        parts = [peers.flatten(one) for one in gather_list or ()]
        self._algorithm.gather(peers.flatten(tensor), parts, dst, peers)
        put_back_all(parts, gather_list or (), peers)

    def reduce(
        self,
        tensor: torch.Tensor,
        dst: int | None = None,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """
        Put the tensors of all ranks together in `tensor` of rank `dst`. The others keep theirs.

        Collective: every rank of the group must call it, with tensors of one size and dtype.

        Args:
            tensor: Any shape. Read everywhere, written in place on `dst`.
            dst: Rank in the default group; None is the group's first.
            op: SUM, AVG, PRODUCT, MIN or MAX of `dist.ReduceOp`.
            group: The process group; None is the default group.

        Raises:
            BadInput: `dst` or this process is not in the group, or `op` does not suit the dtype.
        """
        peers = Peers(group)
        dst = peers.in_group(dst, "dst")
        check_tensors([tensor], "tensor", peers, written=peers.rank == dst)
        check_op(op, tensor.dtype, peers)
        flat = peers.flatten(tensor)
        self._algorithm.reduce(flat, dst, op, peers)
        if peers.rank == dst:
            peers.put_back(flat, tensor)

    def all_gather_unequal(
        self, tensor: torch.Tensor, group: dist.ProcessGroup | None = None
    ) -> list[torch.Tensor]:
        """
        Return the tensors of all ranks, which may differ in their first dimension.

        Lengths go round first, so that every rank can make room for what comes.

        Collective: every rank of the group must call it, with tensors of one dtype.

        Args:
            tensor: (n_r, ...); n_r may differ between ranks and be 0, the rest may not.
            group: The process group; None is the default group.

        Returns:
            list[torch.Tensor]: w new tensors, (n_0, ...) to (n_w-1, ...), on the tensor's device.

        Raises:
            BadInput: The tensor has no dimension, or ranks differ in more than the first one. The
                latter is raised on all ranks alike.
        """
        peers = Peers(group)
        check_tensors([tensor], "tensor", peers)
        if tensor.dim() == 0:
            raise peers.fault(
                "No first dimension: tensor must have at least one", "none", "Give it .view(1)"
            )
        table = self._all_gather_integers([len(tensor), tensor.shape[1:].numel()], tensor, peers)
        widths = sorted({width for _, width in table})
        if len(widths) > 1:
            raise peers.fault(
                "Rows differ: only the first dimension may have another length on each rank",
                f"rows of {widths} numbers",
                "Give all rows the same shape",
            )
        parts = [tensor.new_empty((length, *tensor.shape[1:])) for length, _ in table]
        flats = [peers.flatten(part) for part in parts]
        self._algorithm.all_gather(peers.flatten(tensor), flats, peers)
        put_back_all(flats, parts, peers)
        return parts

    def all_to_all(
        self,
        output_list: list[torch.Tensor] | tuple[torch.Tensor, ...],
        input_list: list[torch.Tensor] | tuple[torch.Tensor, ...],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """
        Fill `output_list[s]` of each rank r with `input_list[r]` of rank s.

        Collective: every rank of the group must call it, with tensors of one dtype.

        Args:
            output_list: One tensor a rank, of any shapes, written in place. Shares no memory with
                the inputs.
            input_list: One tensor a rank, of any shapes; left as they are.
            group: The process group; None is the default group.

        Raises:
            BadInput: A list does not fit the group, dtypes differ, or an output has not the size of
                what its rank sends. The last is raised on all ranks alike.
        """
        peers = Peers(group)
        check_list(input_list, "input_list", peers)
        dtype = input_list[0].dtype
        check_list(input_list, "input_list", peers, dtype=dtype)
        check_list(output_list, "output_list", peers, dtype=dtype, written=True)
        sizes = [one.numel() for one in [*input_list, *output_list]]
        table = self._all_gather_integers(sizes, input_list[0], peers)  # (w, 2 w)
        w = peers.world_size
        counts = [row[:w] for row in table]
        wrong = [(s, t) for s in range(w) for t in range(w) if counts[s][t] != table[t][w + s]]
        if wrong:
            s, t = wrong[0]
            raise peers.fault(
                f"Sizes differ: what rank {s} sends to rank {t} has {counts[s][t]} numbers",
                f"room for {table[t][w + s]}",
                "Make each output as large as what its rank sends",
            )
        outputs = [peers.flatten(one) for one in output_list]
        inputs = [peers.flatten(one) for one in input_list]
        self._algorithm.all_to_all(outputs, inputs, counts, peers)
        put_back_all(outputs, output_list, peers)

    def barrier(self, group: dist.ProcessGroup | None = None) -> None:
        """
        Return when every rank of the group has called it.

        Collective: every rank of the group must call it.

        Args:
            group: The process group; None is the default group.

        Raises:
            BadInput: This process is not in the group.
        """
        peers = Peers(group)
        self._algorithm.barrier(peers.token(), peers)

    def _all_gather_integers(self, numbers, like, peers):
        """
        Return what every rank gave: a list of w lists.

        Args:
            numbers: List of integers, of one length on all ranks.
            like: Tensor on the device to send from.
            peers: The Peers.
        """
        flat = peers.flatten(torch.tensor(numbers, dtype=torch.int64, device=like.device))
        parts = [torch.empty_like(flat) for _ in range(peers.world_size)]
        self._algorithm.all_gather(flat, parts, peers)
        return [part.tolist() for part in parts]
