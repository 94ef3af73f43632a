"""
How what a stage has made gets to the next: the naive way, and the good one.

The naive way waits in each send until the other rank receives. So two neighbours that both send
first wait for ever. The good way keeps the handle of each send, and goes on.

Each message has a tag that says what is in it, so that none is taken for another. NCCL has no tags,
and runs the calls of two ranks one after the other. So all goes over Gloo, which sends from the
CPU: a GPU's tensor is copied. `torch.distributed.pipelining` sends from GPU to GPU, in batches.
"""

import torch
import torch.distributed as dist

_TAG = 15_000  # so that nothing here meets a message of the caller's


def group_with_tags(group: dist.ProcessGroup | None = None) -> dist.ProcessGroup | None:
    """
    Return a group whose messages have tags: the group itself, or one on Gloo of the same ranks.

    Collective: every rank must call it.

    Args:
        group: The process group; None is the default group.
    """
    if dist.get_backend(group) != "nccl":
        return group
    return dist.new_group(dist.get_process_group_ranks(group), backend="gloo")


class WaitingSends:
    """
    Send, and wait until the other rank has received.

    Args:
        group: The process group; None is the default group.

    Lesson: 15_beyond_ddp.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """
        Send a tensor.

        Args:
            tensor: What to send.
            to: The rank in the group that gets it.
            tag: A number that says what it is.
        """
        dist.send(_on_cpu(tensor), group_dst=to, group=self.group, tag=_TAG + tag)

    def receive(self, empty: torch.Tensor, source: int, tag: int) -> torch.Tensor:
        """
        Return a tensor that another rank sends.

        Args:
            empty: A tensor of its shape and dtype, to be filled.
            source: The rank in the group that sends it.
            tag: The number that says what it is.
        """
        message = torch.empty_like(empty, device="cpu")
        dist.recv(message, group_src=source, group=self.group, tag=_TAG + tag)
        return message.to(empty.device)

    def finish(self) -> None:
        """
        Wait for what is still under way: here nothing is.
        """


class KeptSends(WaitingSends):
    """
    Send, keep the handle, and go on.

    Args:
        group: The process group; None is the default group.

    Lesson: 15_beyond_ddp.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self._kept = []  # a handle that is dropped may take its message with it

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        """
        Begin to send a tensor, which must not change before `finish`.
        """
        message = _on_cpu(tensor)
        handle = dist.isend(message, group_dst=to, group=self.group, tag=_TAG + tag)
        self._kept.append((handle, message))

    def finish(self) -> None:
        """
        Wait for all that was sent.
        """
        for handle, _ in self._kept:
            handle.wait()
        self._kept.clear()


def _on_cpu(tensor):
    return tensor.detach().cpu().contiguous()
