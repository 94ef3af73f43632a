"""
A counter of the point-to-point messages and bytes that this process sends.
"""

import contextlib
from dataclasses import dataclass, field

import torch.distributed as dist


@dataclass
class Sent:
    """
    The messages that a rank has sent: the bytes of each, in order.
    """

    sizes_bytes: list = field(default_factory=list)

    @property
    def num_messages(self):
        """
        The number of messages.
        """
        return len(self.sizes_bytes)

    @property
    def num_bytes(self):
        """
        The bytes of all messages.
        """
        return sum(self.sizes_bytes)


@contextlib.contextmanager
def counted_sends():
    """
    Count the messages of `dist.send` and `dist.isend` in the block, and refuse every collective in
    it.

    A collective would move bytes that this counter does not see.

    Yields:
        Sent: It is filled while the block runs.
    """
    sent, kept = Sent(), {}
    for name in ("send", "isend"):
        kept[name] = getattr(dist, name)
    refused = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "barrier")
    for name in (*refused, "reduce_scatter", "all_to_all", "all_gather_into_tensor"):
        kept[name] = getattr(dist, name)
        setattr(dist, name, _refuse(name))
    for name in ("send", "isend"):
        setattr(dist, name, _count(kept[name], sent))
    try:
        yield sent
    finally:
        for name, call in kept.items():
            setattr(dist, name, call)


def _count(call, sent):
    def counting(tensor, *args, **kwargs):
        sent.sizes_bytes.append(tensor.nbytes)
        return call(tensor, *args, **kwargs)

    return counting


def _refuse(name):
    def refusing(*args, **kwargs):
        raise AssertionError(f"dist.{name} was called where only messages may be")

    return refusing
