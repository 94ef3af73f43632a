"""
A simulated world: one rank does what each rank of a larger world would do.

Ranks are played one after the other, each until it needs a message that is not there yet. When the
message of a waiting rank has its other end, the rank is played again, from its beginning. So an
answer must make the same calls each time. Messages are delivered; other calls move no data.

Legend: a message has two ends, a send and a receive.
"""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ddp_lessons.private import process_groups
from ddp_lessons.process_group import rank_device

_MAX_JOIN_S = 0.5
_T = TypeVar("_T")


@dataclass(eq=False)
class MessageEnd:
    """
    One end of a message.

    Args:
        rank: The rank that makes the call.
        peer: The rank that the call names; None: any.
        tag: The message's tag.
        sent: The bytes that are sent, a uint8 tensor; None: this end receives.
        other: The other end of the message; None until it exists.
    """

    rank: int
    peer: int | None
    tag: int
    sent: torch.Tensor | None = None
    other: "MessageEnd | None" = None

    def __str__(self) -> str:
        call = "recv from" if self.sent is None else "send to"
        return f"{call} {'any rank' if self.peer is None else f'rank {self.peer}'}"

    def fits(self, other: "MessageEnd") -> bool:
        """
        Tell whether this end and another one, both without a partner, can form one message.
        """
        return (
            self.other is other.other is None
            and (self.sent is None) != (other.sent is None)
            and self.tag == other.tag
            and self.peer in (None, other.rank)
            and other.peer in (None, self.rank)
        )


def simulate_world(
    world_size: int, play: Callable[[int], _T]
) -> tuple[list[_T | None], dict[int, MessageEnd] | dict[int, Exception]] | None:
    """
    Play each rank of a world.

    Args:
        world_size: Number of ranks of the world.
        play: Function of a rank that plays it, and returns the value to keep. During its call the
            default group is that of the simulated world.

    Returns:
        tuple: A list of what `play` returned for each rank, or None; and {rank: the MessageEnd for
        which it waits} for the ranks that did not finish. If a rank raises, the world stops, and
        the dictionary is {rank: its error}. The function returns None instead of the tuple if an
        answer sends from a thread, because the order of its calls then differs from play to play.
    """
    kept: list[_T | None]
    ends, kept = [{} for _ in range(world_size)], [None] * world_size
    stops: dict[int, Any] = dict.fromkeys(range(world_size))
    while ready := [rank for rank, end in stops.items() if end is None or end.other]:
        for rank in ready:
            with _default_group(_Group(rank, ends)) as group, _ending_threads():
                try:
                    kept[rank] = play(rank)
                    del stops[rank]
                except _NotYet as wait:
                    stops[rank] = wait.end
                except Exception as error:
                    if not group.is_threaded:
                        return kept, {rank: error}
            if group.is_threaded:
                return None
    return kept, stops


class _NotYet(SystemExit):
    """
    An exception that ends the play of a rank that has to wait.

    It is a SystemExit: no answer catches it, and a thread ends on it without output.
    """

    def __init__(self, end):
        super().__init__(end)
        self.end = end


class _Group(dist.ProcessGroup):
    """
    The group of a simulated world, as one of its ranks sees it.

    Args:
        rank: The rank.
        ends: For each rank of the world a dictionary of the MessageEnds that it has made in all
            plays. A key has the direction, the peer, the tag and a number.
    """

    def __init__(self, rank, ends):
        super().__init__(rank, len(ends))  # type: ignore[call-arg]
        # A fake backend stands for torch's own part in messages, too: its calls return at once.
        self._fake = dist.ProcessGroup(dist.HashStore(), rank, len(ends))
        devices = list({torch.device("cpu"), rank_device()})
        for group in (self, self._fake):
            process_groups.make_fake(group, rank, len(ends), devices, "on paper")
        self._ends = ends
        self._num_made = {}
        self.is_threaded = False

    def send(self, tensors, peer, tag):
        end = self._end(peer, tag, _bytes_of(tensors[0]).clone())
        return _Handle(end, None, self._fake.send(tensors, peer, tag))

    def recv(self, tensors, peer, tag):
        end = self._end(peer, tag)
        return _Handle(end, tensors[0], self._fake.recv(tensors, peer, tag))

    def recv_anysource(self, tensors, tag):
        end = self._end(None, tag)
        if end.other is None:
            return _Handle(end, tensors[0], self._fake.recv_anysource(tensors, tag))
        return _Handle(end, tensors[0], self._fake.recv(tensors, end.other.rank, tag))

    def _end(self, peer, tag, sent=None):
        if peer is not None and not 0 <= peer < self.size():
            raise ValueError(f"there is no rank {peer} in a group of {self.size()}")
        if threading.current_thread() is not threading.main_thread():
            self.is_threaded = True
        kind = sent is None, peer, tag
        number = self._num_made[kind] = self._num_made.get(kind, 0) + 1
        mine = self._ends[self.rank()]
        if (*kind, number) not in mine:
            end = mine[*kind, number] = MessageEnd(self.rank(), peer, tag, sent)
            for other in (other for theirs in self._ends for other in theirs.values()):
                if end.fits(other):
                    end.other, other.other = other, end
                    break
        return mine[*kind, number]


class _Handle:
    """
    The handle of a message. Its `wait` ends the play if the message has only one end.
    """

    def __init__(self, end, tensor, work):
        self._end, self._tensor, self._work = end, tensor, work

    def wait(self, timeout=None):
        if self._end.other is None:
            raise _NotYet(self._end)
        if self._tensor is not None:
            sent = self._end.other.sent
            _bytes_of(self._tensor)[: len(sent)] = sent
            self._tensor = None  # later calls must not fill it again
        return dist.Work.wait(self._work)  # so that a trace records the wait

    def is_completed(self):
        return self.wait()

    def _source_rank(self):
        return self._end.other.rank


def _bytes_of(tensor):
    return tensor.detach().view(-1).view(torch.uint8)


@contextmanager
def _default_group(group):
    whole = process_groups.default_group()
    process_groups.add_group(group, dist.get_backend(), dist.HashStore())
    process_groups.set_default_group(group)
    try:
        yield group
    finally:
        # If the answer destroyed its default group, the group of all ranks is gone as well.
        process_groups.set_default_group(whole if process_groups.is_alive(whole) else None)
        process_groups.remove_group(group)


@contextmanager
def _ending_threads():
    # A thread that makes its call later would make it as another rank.
    before = threading.enumerate()
    yield
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(_MAX_JOIN_S)
