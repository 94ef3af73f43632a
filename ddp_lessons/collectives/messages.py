"""
Messages between two ranks of a group: what every collective here is made of.

Legend: rank r of w in a group. `flat` is (n,), contiguous, on a device that the backend can send
from: a view of the caller's tensor where that is possible, else a copy.
"""

import torch
import torch.distributed as dist

from ddp_lessons.errors import BadInput

TAG = 2_002
"""
Tag of all messages here, so that they do not mix with the caller's own, which have tag 0.
"""

_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_COMPLEX = {torch.complex64, torch.complex128}
_REAL = _INTEGERS | _FLOATS | {torch.bool}

_OPS = {
    dist.ReduceOp.SUM: (torch.add, _REAL | _COMPLEX),
    dist.ReduceOp.AVG: (torch.add, _FLOATS | _COMPLEX),
    dist.ReduceOp.PRODUCT: (torch.mul, _REAL),
    dist.ReduceOp.MIN: (torch.minimum, _REAL),
    dist.ReduceOp.MAX: (torch.maximum, _REAL),
}


class Peers:
    """
    The ranks of a group, seen from this one: send to them, receive from them.

    Every number of a rank that it takes is a rank in the group, from 0 to w - 1.

    Args:
        group: The process group; None is the default group.

    Raises:
        BadInput: This process is not in the group.

    Source: torch.distributed documentation, "Point-to-point communication".
    Lesson: 02_collectives.
    """

    def __init__(self, group=None):
        self.group = dist.group.WORLD if group is None else group
        # A process outside a group holds a placeholder, or gets rank -1.
        if not isinstance(self.group, dist.ProcessGroup) or dist.get_rank(self.group) < 0:
            raise BadInput(
                "Not in the group: only its ranks may call a collective (got a process outside it)."
                " Join first, or leave the call out on this rank."
            )
        self.rank = dist.get_rank(self.group)
        self.world_size = dist.get_world_size(self.group)

    def __repr__(self):
        return f"Peers(rank {self.rank} of {self.world_size})"

    def fault(self, fault, got, next_step):
        """
        Return the BadInput that says what is wrong on this rank, for the caller to raise.

        Args:
            fault: What is wrong and what was expected, without a full stop.
            got: The value that came.
            next_step: What to do, without a full stop.
        """
        return BadInput(
            f"{fault} (got {got}, rank {self.rank} of {self.world_size}). {next_step}."
        )

    def in_group(self, global_rank, name):
        """
        Return a rank of the default group as a rank of this group. None is the group's first.

        Args:
            global_rank: Rank in the default group, as torch's `src` and `dst` are.
            name: What the caller calls it, for the message.

        Raises:
            BadInput: That rank is not in the group.
        """
        if global_rank is None:
            return 0
        members = dist.get_process_group_ranks(self.group)
        if global_rank not in members:
            raise self.fault(
                f"No such rank: {name} must be one of {members}",
                global_rank,
                f"Give {name} as a rank of the default group that is in this group",
            )
        return members.index(global_rank)

    def send(self, flat, to):
        """
        Send a flat tensor and wait until it may be changed again. Empty ones are not sent.
        """
        if flat.numel():
            dist.send(flat, group=self.group, tag=TAG, group_dst=to)

    def receive(self, flat, source):
        """
        Fill a flat tensor with what a rank sends. Empty ones are not waited for.
        """
        if flat.numel():
            dist.recv(flat, group=self.group, tag=TAG, group_src=source)

    def exchange(self, outgoing, to, incoming, source):
        """
        Send one flat tensor while another arrives. Does not deadlock, whatever their size.

        If every rank waited for its `send` to end before it called `receive`, large messages
        would wait for ever: no rank would be there to take them. Here both are under way first.

        Args:
            outgoing: (n,) to send.
            to: Rank to send to.
            incoming: (m,) to fill; shares no memory with `outgoing`.
            source: Rank to receive from.
        """
        swaps = []
        # The receive comes first, so that the peer's numbers find a place when they arrive.
        if incoming.numel():
            swaps.append(self._half(dist.irecv, incoming, source))
        if outgoing.numel():
            swaps.append(self._half(dist.isend, outgoing, to))
        # NCCL runs calls one after the other unless they come in a batch.
        for work in dist.batch_isend_irecv(swaps) if swaps else ():
            work.wait()

    def _half(self, call, flat, peer):
        return dist.P2POp(call, flat, group=self.group, tag=TAG, group_peer=peer)

    def flatten(self, tensor):
        """
        Return a tensor's numbers as (n,) that can be sent: a view if possible, else a copy.

        Autograd sees nothing of it. Gloo sends from the CPU only, so a GPU's tensor is copied.
        """
        flat = tensor.detach().resolve_conj().resolve_neg()
        if flat.is_cuda and "cuda:gloo" in dist.get_backend_config(self.group):
            flat = flat.cpu()
        return flat.contiguous().view(-1)

    def put_back(self, flat, tensor):
        """
        Write a flat tensor's numbers into the tensor that `flatten` made it from.
        """
        if flat.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
            tensor.detach().copy_(flat.view(tensor.shape))

    def check_tensors(self, tensors, name, written=False):
        """
        Refuse what cannot be sent, before the first message.

        Args:
            tensors: List of what should be dense tensors.
            name: What the caller calls them, for the message.
            written: They will hold the result, so no two of their numbers may share memory.

        Raises:
            BadInput: One is no dense tensor, or is an expanded one that is written to.
        """
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
                raise self.fault(
                    f"Cannot be sent: {name} must be a dense tensor",
                    type(tensor).__name__ if not isinstance(tensor, torch.Tensor) else tensor.layout,
                    "Collect lists and dictionaries of tensors into one tensor first",
                )
            if written and not tensor.is_contiguous() and _is_expanded(tensor):
                raise self.fault(
                    f"Cannot be written: the numbers of {name} must not share memory",
                    f"a tensor with strides {tensor.stride()}",
                    "Call .clone() on it first",
                )

    def check_list(self, tensors, name, like=None, written=False):
        """
        Refuse a list that is not one dense tensor a rank, before the first message.

        Args:
            tensors: What should be a list of w tensors.
            name: What the caller calls it, for the message.
            like: Every tensor must have this one's shape and dtype, or None if shapes may differ.
            written: As in `check_tensors`.

        Raises:
            BadInput: The list has another length, or a tensor does not fit.
        """
        if not isinstance(tensors, (list, tuple)) or len(tensors) != self.world_size:
            got = f"{len(tensors)}" if isinstance(tensors, (list, tuple)) else "no list"
            raise self.fault(
                f"Wrong list: {name} must hold one tensor a rank, {self.world_size} in all",
                got,
                "Make the list as long as the group is large",
            )
        self.check_tensors(tensors, name, written)
        for tensor in tensors if like is not None else ():
            if tensor.shape != like.shape or tensor.dtype != like.dtype:
                raise self.fault(
                    f"Wrong tensor: {name} must hold {like.dtype} of shape {tuple(like.shape)}",
                    f"{tensor.dtype} of shape {tuple(tensor.shape)}",
                    "Give all tensors of one collective the same shape and dtype",
                )


def _is_expanded(tensor):
    return any(
        stride == 0 and size > 1
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
