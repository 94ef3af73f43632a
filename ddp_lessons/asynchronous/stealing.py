"""
Share work out while it is done: who has none left takes some of another rank's.

Legend: rank r has a queue of n_r items, numbered from 0. A key of a store counts how many of them
have been taken. `store.add` adds to it and returns the new number in one go, so that no two ranks
get the same one.
"""

import uuid
from collections.abc import Sequence

import torch.distributed as dist

from ..errors import BadInput
from ..private.process_groups import default_store


def new_counters() -> dist.PrefixStore:
    """
    Return a store that all ranks share, whose counters begin at 0.

    Collective: every rank must call it.

    Lesson: 14_asynchronous.
    """
    name = [uuid.uuid4().hex]  # a cell that is run again must not go on with old counters
    dist.broadcast_object_list(name, src=0)
    return dist.PrefixStore(name[0], default_store())


class Queues:
    """
    The queues of all ranks, seen from this one.

    Args:
        store: A store that all ranks share, with counters of its own: see `new_counters`.
        sizes: For each rank how many items it has; the same on every rank.
        rank: This rank.

    Attributes:
        num_stolen: How many items this rank has taken of others.

    Raises:
        BadInput: A size is negative, or the rank has no queue.

    Source: R. Blumofe and C. Leiserson, "Scheduling Multithreaded Computations by Work Stealing",
    Journal of the ACM, 1999, for the idea. Lesson: 14_asynchronous.
    """

    def __init__(self, store: dist.Store, sizes: Sequence[int], rank: int) -> None:
        if not 0 <= rank < len(sizes) or min(sizes) < 0:
            raise BadInput(
                f"Bad queues: expected a size of 0 or more for each rank (got {list(sizes)}, rank "
                f"{rank}). Pass the same list on every rank."
            )
        self._store, self._sizes, self._rank = store, list(sizes), rank
        self._open = [owner for owner, size in enumerate(sizes) if size]
        self.num_stolen = 0

    def take(self) -> tuple[int, int] | None:
        """
        Take the next item: of this rank's own while there are any, then of the longest queue.

        Returns:
            tuple: (owner, number), which no other rank gets; None if nothing is left anywhere.
        """
        while self._open:
            owner = self._rank if self._rank in self._open else max(self._open, key=self._left)
            number = self._store.add(_key(owner), 1) - 1
            if number < self._sizes[owner]:
                self.num_stolen += owner != self._rank
                return owner, number
            self._open.remove(owner)  # another rank was faster
        return None

    def _left(self, owner):
        # By now it may be less: this only says where to look, `take` asks again.
        return self._sizes[owner] - self._store.add(_key(owner), 0)


def _key(owner):
    return f"items taken of rank {owner}"
