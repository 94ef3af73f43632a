"""
Messages between two ranks of a group: what every collective here is made of.

Legend: rank r of w in a group. `flat` is (n,), contiguous, on a device that the backend can send
from: a view of the caller's tensor where that is possible, else a copy.
"""

from typing import cast

import torch
import torch.distributed as dist

from ddp_lessons.errors import BadInput

TAG = 2_002
"""
Tag of all messages here, so that they do not mix with the caller's own, which have tag 0.
"""


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

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group: dist.ProcessGroup  # what is none is refused below
        self.group = dist.group.WORLD if group is None else group  # type: ignore[assignment]
        # A process outside a group holds a placeholder, or gets rank -1.
        if not isinstance(self.group, dist.ProcessGroup) or dist.get_rank(self.group) < 0:
            raise BadInput(
                "Not in the group: only its ranks may call a collective (got a process outside it)."
                " Join first, or leave the call out on this rank."
            )
        self.rank = dist.get_rank(self.group)
        self.world_size = dist.get_world_size(self.group)

    def __repr__(self) -> str:
        return f"Peers(rank {self.rank} of {self.world_size})"

    def fault(self, fault: str, got: object, next_step: str) -> BadInput:
        """
        Return the BadInput that says what is wrong on this rank, for the caller to raise.

        Args:
            fault: The text that says what is wrong and what was expected, without a full stop.
            got: The value that came.
            next_step: The text that says what to do, without a full stop.
        """
        return BadInput(f"{fault} (got {got}, rank {self.rank} of {self.world_size}). {next_step}.")

    def in_group(self, global_rank: int | None, name: str) -> int:
        """
        Return a rank of the default group as a rank of this group. None is the group's first.

        Args:
            global_rank: Rank in the default group, as torch's `src` and `dst` are.
            name: The caller's name for it, for the message.

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

    def send(self, flat: torch.Tensor, to: int) -> None:
        """
        Send a flat tensor and wait until it may be changed again. Empty ones are not sent.
        """
        if flat.numel():
            dist.send(flat, group=self.group, tag=TAG, group_dst=to)

    def receive(self, flat: torch.Tensor, source: int) -> None:
        """
        Fill a flat tensor with what a rank sends. Empty ones are not waited for.
        """
        if flat.numel():
            dist.recv(flat, group=self.group, tag=TAG, group_src=source)

    def start_send(self, flat: torch.Tensor, to: int) -> dist.Work:
        """
        Begin to send a flat tensor, which must not change before the returned handle's `wait()`.
        An empty one is sent too.
        """
        return cast(dist.Work, dist.isend(flat, group=self.group, tag=TAG, group_dst=to))

    def start_receive(self, flat: torch.Tensor, source: int) -> dist.Work:
        """
        Begin to fill a flat tensor, which may be read after the returned handle's `wait()`.
        """
        return cast(dist.Work, dist.irecv(flat, group=self.group, tag=TAG, group_src=source))

    def exchange(
        self, outgoing: torch.Tensor, to: int, incoming: torch.Tensor, source: int
    ) -> None:
        """
        Send one flat tensor while another arrives. Does not deadlock, whatever their size.

        If every rank waited for its `send` to end before it called `receive`, no rank would be
        there to take a message, and all would wait for ever: on Gloo at any size, elsewhere
        perhaps only when messages are too large for a buffer. Here both are under way first.

        Args:
            outgoing: (n,) to send.
            to: Rank to send to.
            incoming: (m,) to fill; shares no memory with `outgoing`.
            source: Rank to receive from.
        """
        if outgoing.is_cuda:
            works = self._batch(outgoing, to, incoming, source)
        else:
            # The receive comes first: numbers that find a place when they arrive do not wait.
            works = [self.start_receive(incoming, source)] if incoming.numel() else []
            works += [self.start_send(outgoing, to)] if outgoing.numel() else []
        for work in works:
            work.wait()

    def _batch(self, outgoing, to, incoming, source):
        """
        Begin both at once: NCCL runs calls one after the other unless they come in a batch.
        """
        halves = [(dist.irecv, incoming, source), (dist.isend, outgoing, to)]
        batch = [
            dist.P2POp(call, flat, group=self.group, tag=TAG, group_peer=peer)
            for call, flat, peer in halves
            if flat.numel()
        ]
        return dist.batch_isend_irecv(batch) if batch else []

    def flatten(self, tensor: torch.Tensor) -> torch.Tensor:
        """
        Return a tensor's numbers as (n,) that can be sent: a view if possible, else a copy.

        Autograd sees nothing of it. Gloo sends from the CPU only, so a GPU's tensor is copied.
        """
        flat = tensor.detach().resolve_conj().resolve_neg()
        if flat.is_cuda and "cuda:gloo" in dist.get_backend_config(self.group):
            flat = flat.cpu()
        return flat.contiguous().view(-1)

    def token(self) -> torch.Tensor:
        """
        Return one small tensor that says no more than "I am here".
        """
        on_gpu = "cpu" not in dist.get_backend_config(self.group)
        return torch.ones(1, dtype=torch.uint8, device="cuda" if on_gpu else "cpu")

    def put_back(self, flat: torch.Tensor, tensor: torch.Tensor) -> None:
        """
        Write a flat tensor's numbers into the tensor that `flatten` made it from.
        """
        if flat.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
            tensor.detach().copy_(flat.view(tensor.shape))
